#include "bellows/inspect/sync.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "bellows/core/log.h"
#include "bellows/core/mutex.h"
#include "bellows/inspect/op_info.h"
#include "bellows/system/call_site.h"
#include "bellows/tap/observer.h"
#include "bellows/tap/op_check.h"

namespace bellows::inspect {

namespace {

/// Source and target of a copying operator. The target device of aten::_to_copy is an argument; if it is absent, the
/// device does not change.
bool copies_to_host(const OpInfo& info, c10::ArrayRef<c10::IValue> inputs, c10::Device from) {
  if (!info.copy || !info.schema || info.composite || from.is_cpu()) return false;
  const auto& arguments = info.schema->arguments();
  bool to_host = false, blocking = true;
  for (size_t i = 0; i < inputs.size() && i < arguments.size(); ++i) {
    const std::string& name = arguments[i].name();
    if (name == "non_blocking" && inputs[i].isBool()) blocking = !inputs[i].toBool();
    if (name == "device" && inputs[i].isDevice()) to_host = inputs[i].toDevice().is_cpu();
  }
  if (info.name == "aten::copy_") to_host = inputs[0].toTensor().is_cpu();
  if (info.name == "aten::_copy_from") to_host = inputs[1].toTensor().is_cpu();
  return to_host && blocking;
}

/// The device whose values are needed; for a copy, that of the source.
std::optional<c10::Device> source_device(const OpInfo& info, c10::ArrayRef<c10::IValue> inputs) {
  if (info.name == "aten::copy_" && inputs.size() > 1 && inputs[1].isTensor()) return inputs[1].toTensor().device();
  std::optional<c10::Device> device;
  for_each_tensor(inputs, [&](const at::Tensor& tensor) {
    if (!device || device->is_cpu()) device = tensor.device();
  });
  return device;
}

/// repeat_interleave needs no value if the caller gives the result's size.
bool size_is_given(const OpInfo& info, c10::ArrayRef<c10::IValue> inputs) {
  return info.name == "aten::repeat_interleave" && !inputs.empty() && inputs.back().isInt();
}

/// Why this call waits for the device; "" if it does not wait.
std::string reason_to_wait(const OpInfo& info, c10::ArrayRef<c10::IValue> inputs, bool cpu_counts) {
  if (!info.host_value && !info.dynamic_shape && !info.copy) return "";
  const auto device = source_device(info, inputs);
  if (!device || device->is_meta() || (device->is_cpu() && !cpu_counts)) return "";
  if (info.host_value) return "reads a value on the host";
  if (info.dynamic_shape && !size_is_given(info, inputs)) return "its shape depends on data";
  return copies_to_host(info, inputs, *device) ? "copies from " + device->str() + " to the host" : "";
}

}  // namespace

struct SyncLog {
  explicit SyncLog(const SyncDetector::Options& given) : options(given) {}

  /// Records an event. Returns it with its count at that place.
  SyncEvent add(std::string op, std::string reason) {
    std::string site = options.call_sites ? call_site() : "";
    MutexLock lock(mutex);
    SyncEvent& event = events[{op, reason, site}];
    if (event.count++ == 0) event = {std::move(op), std::move(reason), std::move(site), 1};
    return event;
  }

  const SyncDetector::Options options;
  mutable Mutex mutex;
  std::map<std::tuple<std::string, std::string, std::string>, SyncEvent> events BELLOWS_GUARDED_BY(mutex);
};

std::string describe_sync(const SyncEvent& event) {
  return event.op + " " + event.reason + (event.site.empty() ? "" : ", called at " + event.site);
}

/// Counts the outermost operator that waits: item() calls _local_scalar_dense, and indexing with a mask calls nonzero.
class SyncObserver : public tap::Observer {
 public:
  explicit SyncObserver(std::shared_ptr<SyncLog> state) : state_(std::move(state)) {}
  tap::ObserverNeeds needs() const override { return {.operators = true, .inputs = true}; }

  void before(const tap::OpEvent& event) override {
    Nesting& nesting = nesting_of(event.thread_id);
    ++nesting.depth;
    if (nesting.waiting_at > 0) return;
    const std::string reason = reason_to_wait(op_info(event.name, event.overload), event.inputs, state_->options.cpu);
    if (reason.empty()) return;
    nesting.waiting_at = nesting.depth;
    const SyncEvent added = state_->add(std::string(event.name), reason);
    if (added.count == 1 && state_->options.action == SyncAction::warn) {
      log_warn("implicit synchronization: ", describe_sync(added),
               ". Further synchronizations at this place are only counted.");
    }
  }

  void after(const tap::OpEvent& event) override {
    Nesting& nesting = nesting_of(event.thread_id);
    if (nesting.depth == nesting.waiting_at) nesting.waiting_at = 0;
    --nesting.depth;
  }

 private:
  struct Nesting {
    int depth = 0;
    int waiting_at = 0;  // depth of the counted operator
  };
  Nesting& nesting_of(uint64_t thread) {
    MutexLock lock(mutex_);
    return nesting_[thread];  // references stay valid, and each thread uses its own
  }
  std::shared_ptr<SyncLog> state_;
  Mutex mutex_;
  std::unordered_map<uint64_t, Nesting> nesting_ BELLOWS_GUARDED_BY(mutex_);
};

class SyncCheck : public tap::OpCheck {
 public:
  explicit SyncCheck(std::shared_ptr<SyncLog> state) : state_(std::move(state)) {}
  void check(const tap::OpRef& op, tap::Stack& stack) override {
    const OpInfo& info = op_info(op.handle());
    if (!info.host_value && !info.dynamic_shape && !info.copy) return;
    const std::string reason = reason_to_wait(info, op.arguments(stack), state_->options.cpu);
    if (reason.empty()) return;
    const SyncEvent event = state_->add(std::string(op.name()), reason);
    TORCH_CHECK(false, "SyncDetector: implicit synchronization: ", describe_sync(event),
                ". Keep the value on the device, or move the call out of the step.");
  }

 private:
  std::shared_ptr<SyncLog> state_;
};

struct SyncDetector::State : SyncLog {
  using SyncLog::SyncLog;
};

struct SyncDetector::Guards {
  std::unique_ptr<tap::ObserverGuard> observer;
  std::unique_ptr<tap::OpCheckGuard> check;
};

SyncDetector::SyncDetector(const Options& options)
    : state_(std::make_shared<State>(options)), guards_(std::make_unique<Guards>()) {
  if (options.action == SyncAction::error) {
    guards_->check = std::make_unique<tap::OpCheckGuard>(std::make_shared<SyncCheck>(state_));
  } else {
    guards_->observer = std::make_unique<tap::ObserverGuard>(std::make_shared<SyncObserver>(state_));
  }
}

SyncDetector::~SyncDetector() = default;

std::vector<SyncEvent> SyncDetector::events() const {
  std::vector<SyncEvent> result;
  {
    MutexLock lock(state_->mutex);
    for (const auto& [key, event] : state_->events) result.push_back(event);
  }
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.count > b.count; });
  return result;
}

int64_t SyncDetector::count() const {
  int64_t sum = 0;
  for (const SyncEvent& event : events()) sum += event.count;
  return sum;
}

void SyncDetector::reset() {
  MutexLock lock(state_->mutex);
  state_->events.clear();
}

std::string SyncDetector::to_text() const {
  std::string text;
  for (const SyncEvent& event : events()) text += std::to_string(event.count) + " × " + describe_sync(event) + "\n";
  return text.empty() ? "no implicit synchronization\n" : text;
}

}  // namespace bellows::inspect
