#include <cmath>
#include <nlohmann/json.hpp>

#include "bellows/train/ladder.h"

namespace bellows::train {

namespace {

using LadderJson = nlohmann::ordered_json;

LadderJson number_or_null(double value) {
  return std::isfinite(value) ? LadderJson(value) : LadderJson(nullptr);
}

LadderJson interval_json(const RatioInterval& interval) {
  return {number_or_null(interval.low), number_or_null(interval.high)};
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

LadderJson figures(const RungResult& rung) {
  return {{"technique", rung.technique},
          {"kept", rung.kept()},
          {"step_ms", number_or_null(rung.step_ms)},
          {"samples_per_s", number_or_null(rung.samples_per_s)},
          {"peak_bytes", rung.peak_bytes},
          {"time_to_target_s", number_or_null(rung.time_to_target_s)},
          {"accuracy", number_or_null(rung.accuracy)},
          {"speedup", number_or_null(rung.speedup.ratio)},
          {"interval", interval_json(rung.speedup)},
          {"verdict", to_string(rung.verdict)},
          {"note", rung.note},
          {"batch_size", rung.batch_size},
          {"learning_rate", rung.learning_rate},
          {"epochs_to_target", number_or_null(rung.epochs)}};
}

}  // namespace

std::string to_json(const LadderReport& report) {
  LadderJson json;
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
  json["seconds"] = report.seconds;
  json["interrupted"] = report.interrupted;
  json["recipe"] = report.recipe_yaml;
  return json.dump(2) + "\n";
}

}  // namespace bellows::train
