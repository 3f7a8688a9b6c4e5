#include "bellows/parallel/pipeline/schedule.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/parallel/pipeline/timeline.h"
#include "bellows/parallel/pipeline/timeline_page.h"
#include "bellows/system/file.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usable.h"

namespace bellows::cli {

namespace {

using parallel::PipelineSchedule;
using parallel::PipelineTimeline;

PipelineSchedule schedule_from_file(const ScheduleArguments& arguments) {
  if (!std::filesystem::exists(arguments.schedule))
    throw UsageError(
        c10::str("SCHEDULE: expected gpipe, 1f1b, interleaved, zero_bubble or the path of a schedule file, got ",
                 arguments.schedule, ".", did_you_mean(arguments.schedule, parallel::schedule_names())));
  if (arguments.ranks > 0 || arguments.micro_batches > 0)
    throw UsageError(c10::str(
        "--ranks and --micro-batches apply to gpipe, 1f1b, interleaved and zero_bubble, but SCHEDULE is the file ",
        arguments.schedule, ". Omit them, or choose one of these schedules."));
  return parallel::read_schedule(arguments.schedule);
}

/// Throws: UsageError if the schedule does not exist or cannot have this size
PipelineSchedule chosen_schedule(const ScheduleArguments& arguments) {
  const std::string& name = arguments.schedule;
  const auto or_default = [](int64_t value, int standard) { return value > 0 ? static_cast<int>(value) : standard; };
  const int ranks = or_default(arguments.ranks, 4), micro_batches = or_default(arguments.micro_batches, 8);
  if (arguments.stages_per_rank > 0 && name != "interleaved")
    throw UsageError(c10::str("--stages-per-rank applies only to interleaved, got ", name, "."));
  return usable([&] {
    const std::vector<std::string>& names = parallel::schedule_names();
    if (std::find(names.begin(), names.end(), name) == names.end()) return schedule_from_file(arguments);
    return parallel::named_schedule(name, ranks, micro_batches, or_default(arguments.stages_per_rank, 2));
  });
}

PipelineTimeline timeline_of(const PipelineSchedule& schedule, const ScheduleArguments& arguments) {
  const double half_s = arguments.backward_ms / 2e3;
  const parallel::PipelineTimes::Stage stage{.forward_s = arguments.forward_ms / 1e3,
                                             .backward_s = 2 * half_s,
                                             .backward_input_s = half_s,
                                             .backward_weight_s = half_s};
  parallel::PipelineTimes times{.transfer_s = arguments.transfer_ms / 1e3};
  times.stages.assign(static_cast<size_t>(schedule.stages()), stage);
  return parallel::plan_timeline(schedule, times);
}

std::string actions_of(const PipelineSchedule& schedule, size_t rank) {
  std::string text;
  for (const parallel::PipelineAction& action : schedule.ranks[rank]) text += " " + to_string(action);
  return text;
}

double rank_bubble(const PipelineTimeline& timeline, size_t rank) {
  return 1 - timeline.busy_s(rank) / timeline.length_s();
}

std::string schedule_text(const PipelineSchedule& schedule, const PipelineTimeline& timeline) {
  std::string text =
      wrapped(c10::str(schedule.name, ": ", schedule.stages(), " stages on ", schedule.ranks.size(), " ranks, ",
                       schedule.micro_batches, " micro-batches")) +
      c10::str("A step takes ", brief_number(1e3 * timeline.length_s()), " ms, and the bubble share is ",
               number("%.1f", 100 * timeline.bubble_share()), " %.\n\n", "  rank  activations   work ms  bubble %\n");
  const std::vector<int> activations = activations_in_flight(schedule);
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    text += pad_left(std::to_string(rank), 6) + pad_left(std::to_string(activations[rank]), 13) +
            pad_left(brief_number(1e3 * timeline.busy_s(rank)), 10) +
            pad_left(number("%.1f", 100 * rank_bubble(timeline, rank)), 10) + "\n";
  text +=
      "\nActions, such as F2.5: forward of micro-batch 5 in stage 2. B is backward,\n"
      "I is backward of the input, and W is backward of the weights.\n";
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    text += c10::str("\nrank ", rank, ":\n") + wrapped(actions_of(schedule, rank).substr(1), "  ");
  return text;
}

nlohmann::ordered_json schedule_json(const PipelineSchedule& schedule, const PipelineTimeline& timeline) {
  const std::vector<int> activations = activations_in_flight(schedule);
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    nlohmann::ordered_json actions = nlohmann::ordered_json::array();
    for (const parallel::TimedAction& timed : timeline.ranks[rank])
      actions.push_back({{"action", to_string(timed.action)},
                         {"start_ms", 1e3 * timed.start_s},
                         {"duration_ms", 1e3 * timed.duration_s}});
    ranks.push_back({{"activations", activations[rank]},
                     {"work_ms", 1e3 * timeline.busy_s(rank)},
                     {"bubble_share", rank_bubble(timeline, rank)},
                     {"actions", std::move(actions)}});
  }
  return {{"schedule", schedule.name},
          {"micro_batches", schedule.micro_batches},
          {"stage_ranks", schedule.stage_ranks},
          {"step_ms", 1e3 * timeline.length_s()},
          {"bubble_share", timeline.bubble_share()},
          {"ranks", std::move(ranks)}};
}

}  // namespace

int run_schedule(const ScheduleArguments& arguments) {
  const PipelineSchedule schedule = chosen_schedule(arguments);
  const PipelineTimeline timeline = timeline_of(schedule, arguments);
  for (const std::string& file : {arguments.html, arguments.trace, arguments.out, arguments.json})
    check_output_file(file);
  if (!arguments.out.empty()) parallel::write_schedule(schedule, arguments.out);
  if (!arguments.trace.empty())
    write_text_file(arguments.trace, parallel::chrome_trace(timeline, "planned " + schedule.name));
  if (!arguments.html.empty()) parallel::write_pipeline_page(schedule, timeline, {}, arguments.html);
  if (arguments.json != "-") Terminal().print(schedule_text(schedule, timeline));
  write_json(arguments.json, json_text(schedule_json(schedule, timeline)));
  return exit_done;
}

}  // namespace bellows::cli
