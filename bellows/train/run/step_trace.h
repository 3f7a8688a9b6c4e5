#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/inspect/trace.h"

namespace bellows::train {

/// Steps first … last, counted from 1.
struct StepRange {
  int64_t first = 0, last = 0;
};

/// Parses "10-12,50" into ascending ranges.
/// Throws: c10::ValueError if the text has another form, or a range is descending, overlaps another or is longer than
///         1000
std::vector<StepRange> parse_steps(std::string_view text);

/// Records selected steps of a training run as Chrome traces, `trace-<first>-<last>.json` in a folder. A trace has
/// operators, autograd nodes, memory, a bar for each step, and a bar for each inspect::TraceScope, such as the phases
/// of the training loop ("load", "forward", "backward", "optimizer").
/// Cost:    none outside the selected steps; for those, see inspect::StepTracer
/// Threads: one owner, the thread that runs the steps
class StepTrace {
 public:
  /// Params: steps – see parse_steps(); empty: none
  ///         ranks – ranks that record the same steps; the first one writes all of them into one trace. Null: this
  ///                 process only
  /// Throws: like parse_steps()
  StepTrace(std::string_view steps, std::string folder, const comm::Group* ranks = nullptr);
  /// Writes the recorded part of an unfinished range; errors are logged.
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  /// Call it before step `step`, which is the loop's step_count() + 1.
  void before(int64_t step);
  /// Call it after that step.
  /// Throws: c10::Error if the trace cannot be written
  void after(int64_t step);
  /// Whether a step is being recorded.
  bool active() const { return tracer_ != nullptr; }
  /// The writer for events of the loader while a step is recorded. They become part of the trace.
  std::shared_ptr<TraceWriter> loader_writer() const { return loader_; }

 private:
  void write(bool with_others);

  std::string folder_;
  const comm::Group* ranks_;
  std::vector<StepRange> ranges_;
  std::unique_ptr<inspect::StepTracer> tracer_;
  std::shared_ptr<TraceWriter> loader_;  // the loader's workers may still write when the trace ends
  int64_t first_ = 0, last_ = 0;         ///< range recorded so far
  double step_start_us_ = 0;
};

}  // namespace bellows::train
