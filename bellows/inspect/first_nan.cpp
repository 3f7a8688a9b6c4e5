#include "bellows/inspect/first_nan.h"

#include <ATen/core/function_schema.h>

#include <atomic>
#include <sstream>
#include <unordered_map>

#include "bellows/core/log.h"
#include "bellows/core/mutex.h"
#include "bellows/inspect/bad_values.h"
#include "bellows/inspect/module_tracker.h"
#include "bellows/system/call_site.h"
#include "bellows/tap/op_check.h"

namespace bellows::inspect {

namespace {

enum class Use { read, overwritten, updated };

/// How an operator uses argument `i`. An argument that it overwrites without reading may contain any values before.
Use use_of(const OpInfo& info, size_t i) {
  if (!info.schema || i >= info.schema->arguments().size()) return Use::read;
  const c10::Argument& argument = info.schema->arguments()[i];
  if (!argument.alias_info() || !argument.alias_info()->isWrite()) return Use::read;
  const bool blind = argument.is_out() || info.random || info.name == "aten::copy_" || info.name == "aten::fill_" ||
                     info.name == "aten::zero_";
  return blind ? Use::overwritten : Use::updated;
}

std::string describe_value(const c10::IValue& value) {
  std::ostringstream text;
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return "none";
    text << c10::toString(tensor.scalar_type()) << " " << tensor.sizes() << " " << tensor.device();
  } else if (value.isTensorList()) {
    text << value.toTensorVector().size() << " tensors";
  } else if (value.isNone()) {
    return "none";
  } else {
    text << value;
  }
  return text.str().substr(0, 80);
}

TensorSummary summary_of(std::string name, const c10::IValue& value, BadValues bad) {
  return {std::move(name), describe_value(value), bad.nan, bad.inf};
}

std::string argument_name(const std::vector<c10::Argument>& arguments, size_t i, const char* otherwise) {
  return i < arguments.size() && !arguments[i].name().empty() ? arguments[i].name() : otherwise + std::to_string(i);
}

/// The module as far as it is known now. The place that is settled later would come too late for a finding.
std::string module_now(const ModuleMap& map, const Place& place) {
  if (place.settled) return map.path(place.module);
  return place.after == ModuleMap::root ? "" : "after " + map.path(place.after);
}

std::string summaries_text(const char* title, const std::vector<TensorSummary>& summaries) {
  std::string text;
  for (const TensorSummary& summary : summaries) {
    text += std::string("\n  ") + title + " " + summary.name + ": " + summary.description +
            (summary.has_nan ? ", has NaN" : "") + (summary.has_inf ? ", has inf" : "");
  }
  return text;
}

}  // namespace

struct NanLog {
  explicit NanLog(const FirstNan::Options& given) : options(given) {}

  void report(NanFinding found) {
    MutexLock lock(mutex);
    if (finding) return;
    found.step = step;
    log_warn("FirstNan: ", found.to_string());
    finding = std::move(found);
    to_throw = options.throw_error;
    looking = false;
  }

  const FirstNan::Options options;
  std::atomic<bool> looking{true};
  std::atomic<bool> to_throw{false};
  std::atomic<int64_t> step{0};
  Mutex mutex;
  std::optional<NanFinding> finding BELLOWS_GUARDED_BY(mutex);
};

class NanObserver : public tap::Observer {
 public:
  NanObserver(ModuleMap map, std::shared_ptr<NanLog> log) : tracker_(std::move(map)), log_(std::move(log)) {}
  tap::ObserverNeeds needs() const override { return ModuleTracker::needs(); }

  void before(const tap::OpEvent& event) override {
    Call call;
    {
      MutexLock lock(mutex_);
      const Frame& frame = tracker_.enter(event);
      if (!frame.info) return;
      call.watched = log_->looking && frame.base && !frame.info->view && !frame.info->uninitialized;
      if (call.watched) look_before(*frame.info, event, call);
      calls_[event.thread_id].push_back(std::move(call));
    }
  }

  void after(const tap::OpEvent& event) override {
    MutexLock lock(mutex_);
    const auto frame = tracker_.leave(event);
    if (!frame || !frame->info) return;
    const Call call = std::move(calls_[event.thread_id].back());
    calls_[event.thread_id].pop_back();
    if (call.watched && log_->looking) look_after(*frame, event, call);
  }

 private:
  struct Call {
    bool watched = false;
    std::vector<c10::IValue> inputs;
    std::vector<BadValues> before;  // of arguments that the operator updates
  };

  void look_before(const OpInfo& info, const tap::OpEvent& event, Call& call) const {
    call.inputs.assign(event.inputs.begin(), event.inputs.end());
    call.before.resize(call.inputs.size());
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      if (use_of(info, i) == Use::updated) call.before[i] = bad_values(call.inputs[i]);
    }
  }

  void look_after(const Frame& frame, const tap::OpEvent& event, const Call& call) BELLOWS_REQUIRES(mutex_) {
    const OpInfo& info = *frame.info;
    NanFinding found;
    BadValues made, had;
    for (size_t i = 0; i < event.outputs.size(); ++i) {
      const BadValues bad = bad_values(event.outputs[i]);
      made |= bad;
      found.outputs.push_back(
          summary_of(info.schema ? argument_name(info.schema->returns(), i, "") : "", event.outputs[i], bad));
    }
    const bool returns_nothing = info.schema && info.schema->returns().empty();  // _foreach_add_ and similar operators
    for (size_t i = 0; returns_nothing && i < call.inputs.size(); ++i) {
      if (use_of(info, i) != Use::read) made |= bad_values(call.inputs[i]);
    }
    if (!made.nan && !(made.inf && log_->options.infinities)) return;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const Use use = use_of(info, i);
      const BadValues bad = use == Use::read ? bad_values(call.inputs[i]) : call.before[i];
      had |= bad;
      found.inputs.push_back(
          summary_of(info.schema ? argument_name(info.schema->arguments(), i, "") : "", call.inputs[i], bad));
    }
    found.nan = made.nan && !had.nan;
    found.inf = made.inf && !had.any() && log_->options.infinities;
    if (!found.nan && !found.inf) return;
    found.op = info.name;
    found.backward = frame.backward;
    found.node = tracker_.node_name(event.thread_id);
    found.module = module_now(tracker_.map(), *frame.place);
    found.site = call_site();
    log_->report(std::move(found));
  }

  Mutex mutex_;
  ModuleTracker tracker_ BELLOWS_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::vector<Call>> calls_ BELLOWS_GUARDED_BY(mutex_);
  std::shared_ptr<NanLog> log_;
};

class NanCheck : public tap::OpCheck {
 public:
  explicit NanCheck(std::shared_ptr<NanLog> log) : log_(std::move(log)) {}
  void check(const tap::OpRef&, tap::Stack&) override {
    if (!log_->to_throw.exchange(false)) return;
    MutexLock lock(log_->mutex);
    TORCH_CHECK(!log_->finding, "FirstNan: ", log_->finding->to_string());
  }

 private:
  std::shared_ptr<NanLog> log_;
};

std::string NanFinding::to_string() const {
  std::string text = op + " produced " + (nan && inf ? "NaN and inf" : nan ? "NaN" : "inf") + " from finite inputs";
  text += std::string(" in ") + (backward ? "backward" : "forward") + (node.empty() ? "" : " (" + node + ")");
  if (!module.empty()) text += ", module " + module;
  text += ", step " + std::to_string(step);
  if (!site.empty()) text += ", called at " + site;
  return text + summaries_text("input", inputs) + summaries_text("output", outputs);
}

struct FirstNan::State : NanLog {
  using NanLog::NanLog;
};

struct FirstNan::Guards {
  Guards(ModuleMap map, const std::shared_ptr<NanLog>& log)
      : observer(std::make_shared<NanObserver>(std::move(map), log)) {
    if (log->options.throw_error) check = std::make_unique<tap::OpCheckGuard>(std::make_shared<NanCheck>(log));
  }
  tap::ObserverGuard observer;
  std::unique_ptr<tap::OpCheckGuard> check;
};

FirstNan::FirstNan(const Options& options)
    : state_(std::make_shared<State>(options)), guards_(std::make_unique<Guards>(ModuleMap(), state_)) {}
FirstNan::FirstNan(const Model& model, const Options& options)
    : state_(std::make_shared<State>(options)), guards_(std::make_unique<Guards>(ModuleMap(model), state_)) {}
FirstNan::~FirstNan() = default;

std::optional<NanFinding> FirstNan::finding() const {
  MutexLock lock(state_->mutex);
  return state_->finding;
}

void FirstNan::check() const {
  guards_->observer.check();
  const auto found = finding();
  TORCH_CHECK(!found, "FirstNan: ", found->to_string());
}

void FirstNan::set_step(int64_t step) {
  state_->step = step;
}

void FirstNan::reset() {
  MutexLock lock(state_->mutex);
  state_->finding.reset();
  state_->to_throw = false;
  state_->looking = true;
}

}  // namespace bellows::inspect
