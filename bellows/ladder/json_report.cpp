#include "bellows/ladder/json_report.h"

#include <nlohmann/json.hpp>

#include "bellows/ladder/ladder.h"
#include "bellows/ladder/memory_target.h"
#include "bellows/report/json_text.h"
#include "bellows/system/machine.h"

namespace bellows::train {

namespace {

using LadderJson = nlohmann::ordered_json;

template <class Interval>  // RatioInterval or Range
LadderJson interval_json(const Interval& interval) {
  return {number_or_null<LadderJson>(interval.low), number_or_null<LadderJson>(interval.high)};
}

LadderJson machine_json(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"threads", machine.hardware_threads},
          {"torch_threads", machine.torch_threads},
          {"isa", machine.isa},
          {"memory_bytes", machine.memory_bytes},
          {"os", machine.os},
          {"libtorch", machine.libtorch}};
}

LadderJson curves_json(const RungResult& rung) {
  LadderJson curves = LadderJson::array();
  for (const AccuracyCurve& curve : rung.curves) {
    LadderJson points = LadderJson::array();
    for (const auto& point : curve.points) points.push_back({point.seconds, point.samples, point.accuracy});
    curves.push_back({{"seed", curve.seed}, {"seconds_samples_accuracy", points}});
  }
  return curves;
}

LadderJson shares_json(const StepShares& shares) {
  if (shares.total_ms() == 0) return nullptr;
  return {{"load", shares.load_ms},
          {"forward", shares.forward_ms},
          {"backward", shares.backward_ms},
          {"optimizer", shares.optimizer_ms},
          {"other", shares.other_ms}};
}

/// The results of a rung's training runs.
LadderJson training_figures(const RungResult& rung) {
  LadderJson json = {{"time_to_target_s", number_or_null<LadderJson>(rung.time_to_target_s)}};
  json["time_to_target_range"] = interval_json(rung.time_to_target_range);
  json["accuracy_range"] = interval_json(rung.accuracy_range);
  json["epochs_to_target"] = number_or_null<LadderJson>(rung.epochs);
  json["judged_by"] = rung.judged_by_target ? "time to target" : "samples per second";
  json["time_to_target_over_start"] = number_or_null<LadderJson>(rung.target_over_start);
  json["runs_again"] = rung.runs_again;
  json["step_shares_ms"] = shares_json(rung.shares);
  json["loader_bottleneck"] = rung.bottleneck;
  json["curves"] = curves_json(rung);
  return json;
}

/// The results of a rung in the order of the report. Some exist only if the ladder trains.
LadderJson figures(const RungResult& rung, LadderGoal goal) {
  const bool trains = goal != LadderGoal::inference;
  LadderJson json = {{"technique", rung.technique},        {"title", rung.title}, {"kept", rung.kept()},
                     {"verdict", to_string(rung.verdict)}, {"note", rung.note},   {"batch_size", rung.batch_size}};
  if (trains) json["learning_rate"] = rung.learning_rate;
  json["step_ms"] = number_or_null<LadderJson>(rung.step_ms);
  json["step_ms_interval"] = interval_json(rung.step_ms_interval);
  json["samples_per_s"] = number_or_null<LadderJson>(rung.samples_per_s);
  json["samples_per_s_interval"] = interval_json(rung.samples_per_s_interval);
  json["peak_bytes"] = rung.peak_bytes;
  json["accuracy"] = number_or_null<LadderJson>(rung.accuracy);
  json["speedup"] = number_or_null<LadderJson>(rung.speedup.ratio);
  json["interval"] = interval_json(rung.speedup);
  json["samples_per_s_over_start"] = number_or_null<LadderJson>(rung.samples_per_s_over_start.ratio);
  json["samples_per_s_over_start_interval"] = interval_json(rung.samples_per_s_over_start);
  json["memory_ratio"] = number_or_null<LadderJson>(rung.memory_ratio);
  json["memory_ratio_over_start"] = number_or_null<LadderJson>(rung.memory_over_start);
  json["helps_speed"] = {{"expected", to_string(rung.expected_speed)}, {"measured", to_string(rung.measured_speed)}};
  json["helps_memory"] = {{"expected", to_string(rung.expected_memory)}, {"measured", to_string(rung.measured_memory)}};
  json["model_bytes"] = rung.model_bytes;
  json["output_difference"] = number_or_null<LadderJson>(rung.output_difference);
  if (trains) json.update(training_figures(rung));
  if (goal == LadderGoal::comparison) {
    json["ranks"] = rung.ranks;
    json["threads_per_rank"] = rung.threads;
    json["sent_bytes_per_step"] = number_or_null<LadderJson>(rung.sent_bytes);
  }
  return json;
}

LadderJson inference_totals(const LadderReport& report) {
  return {{"speedup_start_step_ms", number_or_null<LadderJson>(report.start_step_ms)},
          {"speedup_top_step_ms", number_or_null<LadderJson>(report.top_step_ms)},
          {"max_drop", report.options.max_drop},
          {"max_difference", report.options.max_difference}};
}

LadderJson training_totals(const LadderReport& report) {
  return {{"speedup_equal_batch", number_or_null<LadderJson>(report.speedup_equal_batch.ratio)},
          {"speedup_equal_batch_interval", interval_json(report.speedup_equal_batch)},
          {"target_accuracy", report.options.target_accuracy},
          {"seeds", report.options.seeds},
          {"eval_every_steps", report.options.eval_every_steps},
          {"recipe", report.recipe_yaml}};
}

LadderJson rung_json(const TargetRung& rung) {
  return {{"changes", rung.candidate.changes},
          {"techniques", rung.candidate.techniques},
          {"verdict", to_string(rung.verdict)},
          {"note", rung.note},
          {"batch_size", rung.candidate.recipe.batch_size},
          {"gradient_accumulation_steps", rung.candidate.recipe.gradient_accumulation_steps},
          {"predicted_peak_bytes", rung.candidate.predicted_bytes},
          {"peak_bytes", rung.peak_bytes},
          {"evaluation_peak_bytes", rung.evaluation_bytes},
          {"step_ms", number_or_null<LadderJson>(rung.step_ms)},
          {"time_over_start", number_or_null<LadderJson>(rung.time_over_start.ratio)},
          {"time_over_start_interval", interval_json(rung.time_over_start)},
          {"accuracy", number_or_null<LadderJson>(rung.accuracy)},
          {"time_to_target_s", number_or_null<LadderJson>(rung.time_to_target_s)}};
}

}  // namespace

std::string to_json(const LadderReport& report) {
  const LadderOptions& options = report.options;
  LadderJson json;
  json["goal"] = to_string(options.goal);
  json["machine"] = machine_json(report.machine);
  json["baseline"] = figures(report.plain, options.goal);
  json["rungs"] = LadderJson::array();
  for (const RungResult& rung : report.rungs) json["rungs"].push_back(figures(rung, options.goal));
  json["speedup"] = number_or_null<LadderJson>(report.speedup.ratio);
  json["speedup_interval"] = interval_json(report.speedup);
  json["model"] = report.model;
  json["data"] = report.data;
  json["pairs"] = options.pairs;
  json["window_s"] = options.window_s;
  json["seconds"] = report.seconds;
  json["interrupted"] = report.interrupted;
  json["failure"] = report.failure;
  json.update(options.goal == LadderGoal::inference ? inference_totals(report) : training_totals(report));
  return json_text(json, 1) + "\n";
}

std::string to_json(const MemoryTargetReport& report) {
  const TargetRung* choice = report.chosen();
  LadderJson json = {{"goal", "memory target"},
                     {"target_bytes", report.target.bytes},
                     {"target_accuracy", report.target.target_accuracy},
                     {"model", report.model},
                     {"data", report.data},
                     {"machine", machine_json(report.machine)}};
  json["rungs"] = LadderJson::array();
  for (const TargetRung& rung : report.rungs) json["rungs"].push_back(rung_json(rung));
  json["chosen"] = choice ? rung_json(*choice) : LadderJson(nullptr);
  json["recipe"] = choice ? LadderJson(report.recipe_yaml) : LadderJson(nullptr);
  json["certain"] = report.certain;
  json["not_measured"] = {{"predicted_too_large", report.predicted_too_large},
                          {"expected_slower", report.expected_slower},
                          {"out_of_time", report.left}};
  json["seconds"] = report.seconds;
  json["interrupted"] = report.interrupted;
  return json_text(json, 1) + "\n";
}

}  // namespace bellows::train
