#include "bellows/parallel/pipeline/timeline.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "bellows/report/trace_writer.h"

namespace bellows::parallel {

namespace {

using StageWork = std::pair<int, int>;  // stage, micro-batch

/// Ends of the actions that have been planned.
struct PlannedEnds {
  std::map<StageWork, double> forward, input;

  void add(const PipelineAction& action, double end_s) {
    if (action.work == PipelineWork::backward_weight) return;
    (action.work == PipelineWork::forward ? forward : input)[{action.stage, action.micro_batch}] = end_s;
  }

  /// Returns when the results are available that an action needs. Nothing if an action that computes one is not planned.
  std::optional<double> ready(const PipelineSchedule& schedule, const PipelineAction& action, double transfer_s) const {
    const PipelineWork work = action.work;
    const int stage = action.stage;
    double time = 0;
    const auto need = [&](const std::map<StageWork, double>& ends, int from) {
      const auto found = ends.find({from, action.micro_batch});
      if (found == ends.end()) return false;
      const auto rank_of = [&](int of) { return schedule.stage_ranks[static_cast<size_t>(of)]; };
      time = std::max(time, found->second + (rank_of(from) == rank_of(stage) ? 0 : transfer_s));
      return true;
    };
    bool all = true;
    if (work == PipelineWork::forward) {
      all = stage == 0 || need(forward, stage - 1);
    } else if (work == PipelineWork::backward_weight) {
      all = need(input, stage);
    } else {
      all = need(forward, stage) && (stage + 1 == schedule.stages() || need(input, stage + 1));
    }
    return all ? std::optional(time) : std::nullopt;
  }
};

double duration_of(PipelineWork work, const PipelineTimes::Stage& times) {
  switch (work) {
    case PipelineWork::forward:
      return times.forward_s;
    case PipelineWork::backward:
      return times.backward_s;
    case PipelineWork::backward_input:
      return times.backward_input_s;
    default:
      return times.backward_weight_s;
  }
}

void check_all_planned(const PipelineSchedule& schedule, const PipelineTimeline& timeline) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const size_t next = timeline.ranks[rank].size();
    TORCH_CHECK_VALUE(next == schedule.ranks[rank].size(), "schedule ", schedule.name, ": rank ", rank,
                      " waits forever before ", to_string(schedule.ranks[rank][next]), " (action ", next,
                      " of the rank), because an action that it needs comes later. Change the order of the actions.");
  }
}

void append_rows(TraceWriter& trace, const PipelineTimeline& timeline, uint64_t first_row, const std::string& title) {
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const uint64_t row = first_row + rank;
    trace.name_thread(row, title + " rank " + std::to_string(rank));
    for (const auto& [action, start_s, duration_s] : timeline.ranks[rank]) {
      trace.add({.name = to_string(action),
                 .category = to_string(action.work),
                 .start_us = start_s * 1e6,
                 .duration_us = duration_s * 1e6,
                 .thread = row,
                 .args_json = "{\"stage\":" + std::to_string(action.stage) +
                              ",\"micro_batch\":" + std::to_string(action.micro_batch) + "}"});
    }
  }
}

}  // namespace

double PipelineTimeline::start_s() const {
  double first = std::numeric_limits<double>::infinity();
  for (const auto& actions : ranks) {
    for (const TimedAction& timed : actions) first = std::min(first, timed.start_s);
  }
  return first;
}

double PipelineTimeline::length_s() const {
  double last = 0;
  for (const auto& actions : ranks) {
    for (const TimedAction& timed : actions) last = std::max(last, timed.start_s + timed.duration_s);
  }
  return std::max(last - start_s(), 0.0);
}

double PipelineTimeline::busy_s(size_t rank) const {
  double sum = 0;
  for (const TimedAction& timed : ranks[rank]) sum += timed.duration_s;
  return sum;
}

double PipelineTimeline::bubble_share() const {
  double busy = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) busy += busy_s(rank);
  const double length = length_s();
  return length > 0 ? 1 - busy / (static_cast<double>(ranks.size()) * length) : 0;
}

PipelineTimeline plan_timeline(const PipelineSchedule& schedule, const PipelineTimes& times) {
  TORCH_CHECK_VALUE(times.stages.empty() || static_cast<int>(times.stages.size()) == schedule.stages(),
                    "plan_timeline: got times of ", times.stages.size(), " stages, but schedule ", schedule.name,
                    " has ", schedule.stages(), ".");
  PipelineTimeline timeline;
  timeline.ranks.resize(schedule.ranks.size());
  PlannedEnds ends;
  std::vector<double> clocks(schedule.ranks.size(), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      auto& planned = timeline.ranks[rank];
      while (planned.size() < schedule.ranks[rank].size()) {
        const PipelineAction& action = schedule.ranks[rank][planned.size()];
        const auto ready = ends.ready(schedule, action, times.transfer_s);
        if (!ready) break;
        const auto stage = static_cast<size_t>(action.stage);
        const double start = std::max(clocks[rank], *ready);
        const double duration =
            duration_of(action.work, times.stages.empty() ? PipelineTimes::Stage() : times.stages[stage]);
        clocks[rank] = start + duration;
        ends.add(action, clocks[rank]);
        planned.push_back({action, start, duration});
        progress = true;
      }
    }
  }
  check_all_planned(schedule, timeline);
  return timeline;
}

std::string chrome_trace(const PipelineTimeline& timeline, const std::string& title) {
  TraceWriter trace;
  trace.name_process(title);
  append_rows(trace, timeline, 1, title);
  return trace.to_json();
}

void write_pipeline_trace(const PipelineTimeline& planned, const PipelineTimeline& measured, const std::string& path) {
  TraceWriter trace;
  trace.name_process("pipeline");
  append_rows(trace, planned, 1, "planned");
  append_rows(trace, measured, 1 + planned.ranks.size(), "measured");
  trace.write(path);
}

PipelineTimes mean_times(const PipelineTimeline& measured, int stages) {
  std::map<std::pair<int, PipelineWork>, std::pair<double, int>> sums;
  for (const auto& actions : measured.ranks) {
    for (const TimedAction& timed : actions) {
      auto& [sum, count] = sums[{timed.action.stage, timed.action.work}];
      sum += timed.duration_s;
      ++count;
    }
  }
  const auto mean = [&](int stage, PipelineWork work) {
    const auto found = sums.find({stage, work});
    return found == sums.end() ? 0 : found->second.first / found->second.second;
  };
  PipelineTimes times;
  for (int stage = 0; stage < stages; ++stage) {
    PipelineTimes::Stage one{.forward_s = mean(stage, PipelineWork::forward),
                             .backward_s = mean(stage, PipelineWork::backward),
                             .backward_input_s = mean(stage, PipelineWork::backward_input),
                             .backward_weight_s = mean(stage, PipelineWork::backward_weight)};
    if (one.backward_s == 0) one.backward_s = one.backward_input_s + one.backward_weight_s;
    if (one.backward_input_s == 0) one.backward_input_s = one.backward_weight_s = one.backward_s / 2;
    times.stages.push_back(one);
  }
  return times;
}

}  // namespace bellows::parallel
