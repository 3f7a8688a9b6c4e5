#pragma once

#include <string>

#include "bellows/parallel/pipeline/schedule.h"
#include "bellows/parallel/pipeline/timeline.h"

namespace bellows::parallel {

/// Returns a self-contained HTML page that shows when each rank runs its actions, with the bubble share of each timeline
/// and the activations that each rank keeps.
/// Params: planned, measured – timelines of `schedule`. A measured timeline without ranks is left out. For comparable
///         lengths, plan with mean_times(measured)
/// Throws: c10::ValueError if a timeline has another number of ranks than the schedule
std::string pipeline_page(const PipelineSchedule& schedule, const PipelineTimeline& planned,
                          const PipelineTimeline& measured = {});

/// Writes such a page atomically.
/// Throws: c10::Error if the file cannot be written
void write_pipeline_page(const PipelineSchedule& schedule, const PipelineTimeline& planned,
                         const PipelineTimeline& measured, const std::string& path);

}  // namespace bellows::parallel
