#include "bellows/inspect/op_counter.h"

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "bellows/inspect/module_tracker.h"
#include "bellows/report/trace_writer.h"

namespace bellows::inspect {

namespace {

/// Size of what a kernel reads or writes; an expanded tensor has less memory than elements.
int64_t touched_bytes(const at::Tensor& tensor) {
  const int64_t bytes = tensor.numel() * static_cast<int64_t>(tensor.itemsize());
  return tensor.has_storage() ? std::min<int64_t>(bytes, tensor.storage().nbytes()) : bytes;
}

int64_t touched_bytes(c10::ArrayRef<c10::IValue> values) {
  int64_t bytes = 0;
  for_each_tensor(values, [&](const at::Tensor& tensor) { bytes += touched_bytes(tensor); });
  return bytes;
}

}  // namespace

class CountingObserver : public tap::Observer {
 public:
  explicit CountingObserver(ModuleMap map) : tracker_(std::move(map)) {}

  tap::ObserverNeeds needs() const override {
    auto needs = ModuleTracker::needs();
    needs.times = true;
    return needs;
  }

  void before(const tap::OpEvent& event) override {
    std::lock_guard lock(mutex_);
    const Frame& frame = tracker_.enter(event);
    if (!frame.info) return;
    Pending pending;
    if (frame.base && !frame.info->view && !frame.info->uninitialized) pending.bytes = touched_bytes(event.inputs);
    // Only operators with a formula keep their arguments: results are not there yet.
    if (frame.info->flops && !frame.flops_above) pending.inputs.assign(event.inputs.begin(), event.inputs.end());
    pending_[event.thread_id].push_back(std::move(pending));
  }

  void after(const tap::OpEvent& event) override {
    std::lock_guard lock(mutex_);
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
    std::lock_guard lock(mutex_);
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
    std::lock_guard lock(mutex_);
    counts_.clear();
  }

 private:
  struct Pending {
    int64_t bytes = 0;
    std::vector<c10::IValue> inputs;
  };

  OpCount& count_of(const Frame& frame) {
    if (counts_.size() > 4 * settled_size_ + 4096) settle();
    return counts_[{frame.place, frame.info, frame.backward}];
  }

  /// Moves the counts of gaps that have found their module there, so that a long run stays small.
  void settle() {
    std::map<Key, OpCount> kept;
    for (const auto& [key, count] : counts_) {
      auto [place, info, backward] = key;
      kept[{place->settled ? tracker_.settled(place->module) : place, info, backward}] += count;
    }
    counts_ = std::move(kept);
    settled_size_ = counts_.size();
  }

  using Key = std::tuple<PlacePtr, const OpInfo*, bool>;
  mutable std::mutex mutex_;
  ModuleTracker tracker_;
  std::unordered_map<uint64_t, std::vector<Pending>> pending_;
  std::map<Key, OpCount> counts_;
  size_t settled_size_ = 0;
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
