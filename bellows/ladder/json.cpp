#include "bellows/ladder/json_impl.h"
#include "bellows/ladder/ladder.h"

namespace bellows::train {

namespace {

using namespace ladder_json;

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

LadderJson figures(const RungResult& rung) {
  LadderJson json = {{"technique", rung.technique},        {"title", rung.title}, {"kept", rung.kept()},
                     {"verdict", to_string(rung.verdict)}, {"note", rung.note},   {"batch_size", rung.batch_size},
                     {"learning_rate", rung.learning_rate}};
  json["step_ms"] = number_or_null(rung.step_ms);
  json["step_ms_interval"] = interval_json(rung.step_ms_interval);
  json["samples_per_s"] = number_or_null(rung.samples_per_s);
  json["samples_per_s_interval"] = interval_json(rung.samples_per_s_interval);
  json["peak_bytes"] = rung.peak_bytes;
  json["time_to_target_s"] = number_or_null(rung.time_to_target_s);
  json["time_to_target_range"] = interval_json(rung.time_to_target_range);
  json["accuracy"] = number_or_null(rung.accuracy);
  json["accuracy_range"] = interval_json(rung.accuracy_range);
  json["epochs_to_target"] = number_or_null(rung.epochs);
  json["judged_by"] = rung.judged_by_target ? "time to target" : "samples per second";
  json["speedup"] = number_or_null(rung.speedup.ratio);
  json["interval"] = interval_json(rung.speedup);
  json["samples_per_s_over_start"] = number_or_null(rung.samples_per_s_over_start.ratio);
  json["samples_per_s_over_start_interval"] = interval_json(rung.samples_per_s_over_start);
  json["time_to_target_over_start"] = number_or_null(rung.target_over_start);
  json["runs_again"] = rung.runs_again;
  json["memory_ratio"] = number_or_null(rung.memory_ratio);
  json["memory_ratio_over_start"] = number_or_null(rung.memory_over_start);
  json["helps_speed"] = {{"expected", to_string(rung.expected_speed)}, {"measured", to_string(rung.measured_speed)}};
  json["helps_memory"] = {{"expected", to_string(rung.expected_memory)}, {"measured", to_string(rung.measured_memory)}};
  json["step_shares_ms"] = shares_json(rung.shares);
  json["loader_bottleneck"] = rung.bottleneck;
  json["curves"] = curves_json(rung);
  return json;
}

}  // namespace

std::string to_json(const LadderReport& report) {
  LadderJson json;
  json["goal"] = report.options.goal == LadderGoal::memory ? "memory" : "speed";
  json["machine"] = machine_json(report.machine);
  json["baseline"] = figures(report.plain);
  json["rungs"] = LadderJson::array();
  for (const RungResult& rung : report.rungs) json["rungs"].push_back(figures(rung));
  json["speedup"] = number_or_null(report.speedup.ratio);
  json["speedup_equal_batch"] = number_or_null(report.speedup_equal_batch.ratio);
  json["speedup_interval"] = interval_json(report.speedup);
  json["speedup_equal_batch_interval"] = interval_json(report.speedup_equal_batch);
  json["model"] = report.model;
  json["data"] = report.data;
  json["target_accuracy"] = report.options.target_accuracy;
  json["pairs"] = report.options.pairs;
  json["window_s"] = report.options.window_s;
  json["seeds"] = report.options.seeds;
  json["eval_every_steps"] = report.options.eval_every_steps;
  json["seconds"] = report.seconds;
  json["interrupted"] = report.interrupted;
  json["failure"] = report.failure;
  json["recipe"] = report.recipe_yaml;
  return json.dump(1, ' ', false, LadderJson::error_handler_t::replace) + "\n";
}

}  // namespace bellows::train
