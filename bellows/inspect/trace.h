#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "bellows/report/trace_writer.h"

namespace bellows::inspect {

struct TraceOptions {
  bool memory = true;              ///< also write the memory use over time
  bool shapes = false;             ///< write the sizes of the inputs as arguments of each event
  c10::Device device = c10::kCPU;  ///< device whose memory use is written
};

/// While this object exists, it records a Chrome trace with one row per thread. The trace covers this thread and the
/// autograd threads that run the backward passes of this thread. The trace contains nested operators, the scopes of
/// record_function and ModuleScope, and the autograd nodes to which operators in backward belong. Times are host times;
/// on an accelerator, the time of an operator is that of its launch. Open the file in ui.perfetto.dev.
/// Cost:    about 3 µs and 200 bytes per operator. Trace one or two steps, not an epoch
/// Threads: create and destroy the tracer on the same thread
/// Ref:     torch.profiler.profile(...).export_chrome_trace
class StepTracer {
 public:
  explicit StepTracer(const TraceOptions& options = {});
  ~StepTracer();
  StepTracer(const StepTracer&) = delete;
  StepTracer& operator=(const StepTracer&) = delete;

  /// Returns the writer of the events, to which you can add your own events.
  TraceWriter& writer();
  /// Throws: c10::Error if the path cannot be written; any exception that occurred while recording
  void write(const std::string& path);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A named code section, which appears as one bar in traces of the current thread. Names that begin with "module:" are
/// reserved for ModuleScope.
/// Cost: a few ns if there is no observer
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
