#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bellows/parallel/pipeline/schedule.h"

namespace bellows::parallel {

/// An action with its start and duration in seconds.
struct TimedAction {
  PipelineAction action;
  double start_s = 0, duration_s = 0;
};

/// When each rank runs its actions, planned or measured.
struct PipelineTimeline {
  std::vector<std::vector<TimedAction>> ranks;  ///< actions of each rank, in their order

  /// The start of the first action; infinity if there is none.
  double start_s() const;
  /// Seconds from the start of the first action to the end of the last one.
  double length_s() const;
  /// Sum of the durations of a rank's actions.
  double busy_s(size_t rank) const;
  /// The share of the ranks' time in which they run no action: 1 - sum of durations / (ranks · length). A rank waits
  /// in this time, for example for another rank.
  double bubble_share() const;
};

/// Seconds that each stage needs for one micro-batch.
struct PipelineTimes {
  struct Stage {
    double forward_s = 1, backward_s = 2;
    double backward_input_s = 1, backward_weight_s = 1;
  };
  std::vector<Stage> stages = {};  ///< one per stage; empty: the default times for all stages
  double transfer_s = 0;           ///< of one exchange between two ranks
};

/// Computes when the actions of a schedule run, if they take the given times. Exchanges do not block the ranks.
/// Throws: c10::ValueError if ranks wait for each other forever (the message names a rank and its action), or if the
///         number of stages differs
PipelineTimeline plan_timeline(const PipelineSchedule& schedule, const PipelineTimes& times);

/// Returns the timeline as a Chrome trace (chrome://tracing, Perfetto), with one row per rank.
/// Params: title – name of the process in the viewer, such as "planned 1f1b"
std::string chrome_trace(const PipelineTimeline& timeline, const std::string& title);

/// Writes a planned and a measured timeline of the same schedule to one Chrome trace, with the planned rows first.
/// Throws: c10::Error if the file cannot be written
void write_pipeline_trace(const PipelineTimeline& planned, const PipelineTimeline& measured, const std::string& path);

/// Returns the mean measured time of each stage's actions, with which plan_timeline() can plan other schedules. Times
/// of actions that the schedule does not have are derived from the other ones.
PipelineTimes mean_times(const PipelineTimeline& measured, int stages);

}  // namespace bellows::parallel
