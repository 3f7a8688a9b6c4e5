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

/// "10-12,50" as ranges in order.
/// Throws: c10::ValueError – not of this form, a range that runs backwards, overlaps another or is longer than 1000
std::vector<StepRange> parse_steps(std::string_view text);

/// Records chosen steps of a training run as Chrome traces, `trace-<first>-<last>.json` in a folder: operators, autograd
/// nodes, memory, a bar for each step, and a bar for whatever stands in an inspect::TraceScope, as the train loop's
/// phases do ("load", "forward", "backward", "optimizer").
/// Cost:    nothing outside those steps; inside, what inspect::StepTracer says
/// Threads: one owner, the one that takes the steps
class StepTrace {
 public:
  /// Params: steps – as parse_steps(); empty: none
  ///         ranks – who record the same steps, of which the first writes all of them into one trace; null: this process
  /// Throws: as parse_steps()
  StepTrace(std::string_view steps, std::string folder, const comm::Group* ranks = nullptr);
  /// Writes what a range that did not come to its end has recorded; what goes wrong is logged.
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  /// Call it before step `step`, the loop's step_count() + 1.
  void before(int64_t step);
  /// Call it when that step is done.
  /// Throws: c10::Error – the trace cannot be written
  void after(int64_t step);
  /// A step is being recorded.
  bool active() const { return tracer_ != nullptr; }
  /// Where a loader may draw what it does while a step is being recorded; it becomes part of that trace.
  std::shared_ptr<TraceWriter> loader_writer() const { return loader_; }

 private:
  void write(bool with_others);

  std::string folder_;
  const comm::Group* ranks_;
  std::vector<StepRange> ranges_;
  std::unique_ptr<inspect::StepTracer> tracer_;
  std::shared_ptr<TraceWriter> loader_;  // its workers may still write when the trace ends
  int64_t first_ = 0, last_ = 0;         ///< recorded so far
  double step_start_us_ = 0;
};

}  // namespace bellows::train
