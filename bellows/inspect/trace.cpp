#include "bellows/inspect/trace.h"

#include <ATen/record_function.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/inspect/memory.h"
#include "bellows/inspect/op_info.h"
#include "bellows/report/json_text.h"
#include "bellows/tap/observer.h"

namespace bellows::inspect {

namespace {

const char* category_of(tap::OpEvent::Kind kind) {
  switch (kind) {
    case tap::OpEvent::Kind::op:
      return "op";
    case tap::OpEvent::Kind::backward_node:
      return "backward";
    case tap::OpEvent::Kind::torchscript:
      return "torchscript";
    case tap::OpEvent::Kind::user_scope:
      return "scope";
  }
  return "";
}

}  // namespace

class TracingObserver : public tap::Observer {
 public:
  TracingObserver(const TraceOptions& options, TraceWriter& writer) : options_(options), writer_(writer) {
    if (options_.memory) memory_.emplace(writer_, MemoryTimeline::Options{.device = options_.device});
  }

  tap::ObserverNeeds needs() const override {
    return {.operators = true, .backward_nodes = true, .user_scopes = true, .inputs = options_.shapes, .times = true};
  }

  void before(const tap::OpEvent& event) override {
    if (!options_.shapes) return;
    MutexLock lock(mutex_);
    sizes_[event.thread_id].push_back(sizes_text(event));
  }

  void after(const tap::OpEvent& event) override {
    const double now = trace_now_us();
    nlohmann::json args = nlohmann::json::object();
    if (event.sequence_number >= 0) args["sequence"] = event.sequence_number;
    if (options_.shapes) {
      MutexLock lock(mutex_);
      auto& stack = sizes_[event.thread_id];
      args["sizes"] = std::move(stack.back());
      stack.pop_back();
    }
    writer_.add({std::string(event.name), category_of(event.kind), event.start_us, now - event.start_us, 0,
                 args.empty() ? "" : json_text(args)});
    if (memory_ && !options_.device.is_cpu()) memory_->sample();
  }

  void stop_memory() { memory_.reset(); }

 private:
  static nlohmann::json sizes_text(const tap::OpEvent& event) {
    auto all = nlohmann::json::array();
    for_each_tensor(event.inputs, [&](const at::Tensor& tensor) { all.push_back(tensor.sizes().vec()); });
    return all;
  }

  const TraceOptions options_;
  TraceWriter& writer_;
  std::optional<MemoryTimeline> memory_;
  Mutex mutex_;
  std::unordered_map<uint64_t, std::vector<nlohmann::json>> sizes_ BELLOWS_GUARDED_BY(mutex_);
};

struct StepTracer::State {
  explicit State(const TraceOptions& options) : observer(std::make_shared<TracingObserver>(options, writer)) {
    guard.emplace(observer);
  }
  ~State() {
    guard.reset();
    observer->stop_memory();  // taps may keep the observer alive for a while, but the writer is destroyed now
  }
  TraceWriter writer;
  std::shared_ptr<TracingObserver> observer;
  std::optional<tap::ObserverGuard> guard;
};

StepTracer::StepTracer(const TraceOptions& options) : state_(std::make_unique<State>(options)) {}
StepTracer::~StepTracer() = default;
TraceWriter& StepTracer::writer() {
  return state_->writer;
}

void StepTracer::write(const std::string& path) {
  state_->guard->check();
  state_->writer.write(path);
}

struct TraceScope::Scope {
  at::RecordFunction record{at::RecordScope::USER_SCOPE};
};

TraceScope::TraceScope(const std::string& name) : scope_(std::make_unique<Scope>()) {
  if (scope_->record.isActive()) scope_->record.before(name);
}
TraceScope::~TraceScope() = default;

}  // namespace bellows::inspect
