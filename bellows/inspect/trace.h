#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "bellows/report/trace_writer.h"

namespace bellows::inspect {

struct TraceOptions {
  bool memory = true;              ///< draw memory over time, too
  bool shapes = false;             ///< the sizes of the inputs as arguments of each event
  c10::Device device = c10::kCPU;  ///< whose memory
};

/// Records what this thread and autograd's workers do as a Chrome trace while it lives: operators nested as they call
/// each other, autograd nodes around the operators of backward, record_function and ModuleScope scopes, one row a
/// thread. Times are the host's; on an accelerator an operator's time is that of its launch. Open the file in
/// ui.perfetto.dev.
/// Cost:    about 3 µs and 200 bytes an operator: trace a step or two, not an epoch
/// Threads: make and destroy it on one thread
/// Ref:     torch.profiler.profile(...).export_chrome_trace
class StepTracer {
 public:
  explicit StepTracer(const TraceOptions& options = {});
  ~StepTracer();
  StepTracer(const StepTracer&) = delete;
  StepTracer& operator=(const StepTracer&) = delete;

  /// Where the events are kept: add your own beside them.
  TraceWriter& writer();
  /// Throws: c10::Error – the path cannot be written; what went wrong while recording, if anything did
  void write(const std::string& path);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A named stretch of code, drawn as one bar in traces of the thread. Names that begin with "module:" are
/// ModuleScope's.
/// Cost: a few ns while nothing observes
/// Ref:  torch.profiler.record_function
class TraceScope {
 public:
  explicit TraceScope(const std::string& name);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

}  // namespace bellows::inspect
