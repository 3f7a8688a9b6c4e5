#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/inspect/trace.h"

namespace bellows::train {

/// The steps from `first` to `last`, including both. Steps are counted from 1.
struct StepRange {
  int64_t first = 0, last = 0;
};

/// Parses step ranges such as "10-12,50" and returns them in ascending order.
/// Throws: c10::ValueError if the text is not in this form, or a range is descending, overlaps another range or is
///         longer than 1000 steps
std::vector<StepRange> parse_steps(std::string_view text);

/// Records selected steps of a training run as Chrome traces, and also the next steps after request_trace(). The files
/// are named `trace-<first>-<last>.json`. A trace shows operators, autograd nodes, memory, and a bar for each step. It
/// also has a bar for each inspect::TraceScope, such as the phases of the training loop ("load", "forward", "backward",
/// "optimizer").
/// Cost:    none outside the selected steps; see inspect::StepTracer for the selected steps
/// Threads: all calls must come from the thread that runs the steps
class StepTrace {
 public:
  /// Params: steps  – see parse_steps(). If empty, nothing is recorded
  ///         folder – folder for the traces. If it is empty, requests for traces are refused with a warning
  ///         ranks  – ranks that record the same steps. The first rank writes one trace with the events of all ranks.
  ///                  Null if there is only this process
  /// Throws: c10::ValueError if parse_steps() throws it, or if `folder` is empty and steps are selected
  StepTrace(std::string_view steps, std::string folder, const comm::Group* ranks = nullptr);
  /// Writes the recorded part of an unfinished range. Errors are logged.
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  /// Starts recording if `step` is selected, or if request_trace() was called. A request concerns only this process, so
  /// with several ranks, each rank with a request writes its own file. Call this function before each step with the
  /// loop's step_count() + 1.
  void before(int64_t step);
  /// Ends the recording of a step and writes the trace after the last step of a range. Call this function after each
  /// step.
  /// Throws: c10::Error if the trace cannot be written
  void after(int64_t step);
  /// Whether a step is being recorded.
  bool active() const { return tracer_ != nullptr; }
  /// Returns the writer for the loader's events while a step is recorded, and null at all other times. These events
  /// become part of the trace.
  std::shared_ptr<TraceWriter> loader_writer() const { return loader_; }

 private:
  void take_request(int64_t step);
  void write(bool with_others);

  std::string folder_;
  const comm::Group* ranks_;
  std::vector<StepRange> ranges_;
  std::unique_ptr<inspect::StepTracer> tracer_;
  std::shared_ptr<TraceWriter> loader_;  // shared, because the loader's workers may still write when the trace ends
  int64_t first_ = 0, last_ = 0;         ///< range recorded so far
  StepRange requested_;                  ///< of the last request
  double step_start_us_ = 0;
};

}  // namespace bellows::train
