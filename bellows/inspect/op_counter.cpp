#include "bellows/inspect/op_counter.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "bellows/core/mutex.h"
#include "bellows/core/stats.h"
#include "bellows/inspect/module_tracker.h"
#include "bellows/report/json_text.h"
#include "bellows/report/trace_writer.h"

namespace bellows::inspect {

namespace {

/// Formats with powers of 1000: "1.738 G".
std::string with_suffix(int64_t number) {
  static constexpr const char* suffixes[] = {"", " K", " M", " G", " T", " P"};
  if (number < 1000) return std::to_string(number);
  double value = static_cast<double>(number);
  int power = 0;
  while (value >= 999.95 && power < 5) value /= 1000, ++power;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%s", value, suffixes[power]);
  return text;
}

std::string count_line(const std::string& name, const OpCount& count, int64_t all_flops) {
  char text[160];
  const double percent = all_flops ? 100.0 * static_cast<double>(count.flops) / static_cast<double>(all_flops) : 0;
  std::snprintf(text, sizeof text, "%-37s %7s %9s %5.1f%% %10s %6.1f\n", shortened(name, 37).c_str(),
                with_suffix(count.calls).c_str(), with_suffix(count.flops).c_str(), percent,
                format_bytes(static_cast<double>(count.bytes)).c_str(), count.host_us / 1000);
  return text;
}

std::string heading(const char* first) {
  char text[160];
  std::snprintf(text, sizeof text, "%-37s %7s %9s %6s %10s %6s\n", first, "calls", "FLOPs", "", "bytes", "ms");
  return text + std::string(79, '-') + "\n";
}

int levels(const std::string& path) {
  return path.empty() ? 0 : 1 + static_cast<int>(std::count(path.begin(), path.end(), '.'));
}

nlohmann::json to_object(const OpCount& count) {
  return {{"calls", count.calls}, {"flops", count.flops}, {"bytes", count.bytes}, {"host_us", count.host_us}};
}

}  // namespace

OpCount& OpCount::operator+=(const OpCount& other) {
  calls += other.calls;
  flops += other.flops;
  bytes += other.bytes;
  host_us += other.host_us;
  return *this;
}

OpCount OpReport::total() const {
  OpCount sum;
  for (const OpRow& row : rows) sum += row.count;
  return sum;
}

std::vector<OpRow> OpReport::by_operator() const {
  std::map<std::pair<std::string, bool>, OpCount> sums;
  for (const OpRow& row : rows) sums[{row.op, row.backward}] += row.count;
  std::vector<OpRow> result;
  result.reserve(sums.size());
  for (const auto& [key, count] : sums) result.push_back({"", key.first, key.second, count});
  std::stable_sort(result.begin(), result.end(), [](const OpRow& a, const OpRow& b) {
    return std::pair(a.count.flops, a.count.bytes) > std::pair(b.count.flops, b.count.bytes);
  });
  return result;
}

std::vector<OpRow> OpReport::by_module(int depth) const {
  const auto order = [](const std::string& a, const std::string& b) {  // '.' sorts first: parent before child
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                        [](char x, char y) { return (x == '.' ? 0 : x) < (y == '.' ? 0 : y); });
  };
  std::map<std::string, OpCount, decltype(order)> sums(order);
  sums[""];
  for (const OpRow& row : rows) {
    for (std::string path = row.module;; path.resize(path.rfind('.') == std::string::npos ? 0 : path.rfind('.'))) {
      if (depth < 0 || levels(path) <= depth) sums[path] += row.count;
      if (path.empty()) break;
    }
  }
  std::vector<OpRow> result;
  result.reserve(sums.size());
  for (const auto& [path, count] : sums) result.push_back({path, "", false, count});
  return result;
}

std::string OpReport::to_text(int depth) const {
  const int64_t flops = total().flops;
  std::string text = heading("operator (b: backward)");
  for (const OpRow& row : by_operator()) text += count_line(row.op + (row.backward ? " (b)" : ""), row.count, flops);
  text += "\n" + heading("module, including its submodules");
  for (const OpRow& row : by_module(depth)) {
    const std::string indent(2 * static_cast<size_t>(levels(row.module)), ' ');
    text += count_line(row.module.empty() ? "(model)" : indent + row.module.substr(row.module.rfind('.') + 1),
                       row.count, flops);
  }
  return text;
}

std::string OpReport::to_json() const {
  nlohmann::json report = {{"total", to_object(total())}, {"rows", nlohmann::json::array()}};
  for (const OpRow& row : rows) {
    nlohmann::json object = to_object(row.count);
    object.update({{"module", row.module}, {"op", row.op}, {"backward", row.backward}});
    report["rows"].push_back(std::move(object));
  }
  return json_text(report, 2);
}

class CountingObserver : public tap::Observer {
 public:
  explicit CountingObserver(ModuleMap map) : tracker_(std::move(map)) {}

  tap::ObserverNeeds needs() const override { return ModuleTracker::needs(/*times=*/true); }

  void before(const tap::OpEvent& event) override {
    MutexLock lock(mutex_);
    const Frame& frame = tracker_.enter(event);
    if (!frame.info) return;
    Pending pending;
    if (frame.base && !frame.info->view && !frame.info->uninitialized) pending.bytes = touched_bytes(event.inputs);
    // Arguments are stored only for operators with a formula, because results do not exist yet.
    if (frame.info->flops && !frame.flops_above) pending.inputs.assign(event.inputs.begin(), event.inputs.end());
    pending_[event.thread_id].push_back(std::move(pending));
  }

  void after(const tap::OpEvent& event) override {
    MutexLock lock(mutex_);
    const auto frame = tracker_.leave(event);
    if (!frame || !frame->info) return;
    Pending pending = std::move(pending_[event.thread_id].back());
    pending_[event.thread_id].pop_back();
    const bool counts_flops = frame->info->flops && !frame->flops_above && !event.outputs.empty();
    if (!frame->base && !counts_flops) return;
    OpCount& count = count_of(*frame);
    if (counts_flops) count.flops += frame->info->flops(pending.inputs, event.outputs);
    if (!frame->base) return;
    count.calls += 1;
    count.host_us += trace_now_us() - event.start_us;
    if (!frame->info->view && !frame->info->uninitialized) count.bytes += pending.bytes + touched_bytes(event.outputs);
  }

  OpReport report() const {
    MutexLock lock(mutex_);
    std::map<std::tuple<int, std::string, bool>, OpCount> merged;
    for (const auto& [key, count] : counts_) {
      const auto& [place, info, backward] = key;
      merged[{place->module, info->name, backward}] += count;
    }
    OpReport report;
    for (const auto& [key, count] : merged) {
      report.rows.push_back({tracker_.map().path(std::get<0>(key)), std::get<1>(key), std::get<2>(key), count});
    }
    return report;
  }

  void reset() {
    MutexLock lock(mutex_);
    counts_.clear();
  }

 private:
  struct Pending {
    int64_t bytes = 0;
    std::vector<c10::IValue> inputs;
  };

  OpCount& count_of(const Frame& frame) BELLOWS_REQUIRES(mutex_) {
    if (counts_.size() > 4 * settled_size_ + 4096) settle();
    return counts_[{frame.place, frame.info, frame.backward}];
  }

  /// Moves counts of gaps whose module is now known to that module, so that the map stays small in long runs.
  void settle() BELLOWS_REQUIRES(mutex_) {
    std::map<Key, OpCount> kept;
    for (const auto& [key, count] : counts_) {
      auto [place, info, backward] = key;
      kept[{place->settled ? tracker_.settled(place->module) : place, info, backward}] += count;
    }
    counts_ = std::move(kept);
    settled_size_ = counts_.size();
  }

  using Key = std::tuple<PlacePtr, const OpInfo*, bool>;
  mutable Mutex mutex_;
  ModuleTracker tracker_ BELLOWS_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::vector<Pending>> pending_ BELLOWS_GUARDED_BY(mutex_);
  std::map<Key, OpCount> counts_ BELLOWS_GUARDED_BY(mutex_);
  size_t settled_size_ BELLOWS_GUARDED_BY(mutex_) = 0;
};

struct OpCounter::State {
  explicit State(ModuleMap map) : observer(std::make_shared<CountingObserver>(std::move(map))), guard(observer) {}
  std::shared_ptr<CountingObserver> observer;
  tap::ObserverGuard guard;
};

OpCounter::OpCounter() : state_(std::make_unique<State>(ModuleMap())) {}
OpCounter::OpCounter(const Model& model) : state_(std::make_unique<State>(ModuleMap(model))) {}
OpCounter::~OpCounter() = default;

OpReport OpCounter::report() const {
  state_->guard.check();
  return state_->observer->report();
}

void OpCounter::reset() {
  state_->observer->reset();
}

OpReport count_ops(const Model& model, const std::function<void()>& work) {
  OpCounter counter(model);
  work();
  return counter.report();
}

}  // namespace bellows::inspect
