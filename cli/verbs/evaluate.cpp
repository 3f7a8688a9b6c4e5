#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bellows/core/stats.h"
#include "bellows/train/inference/model_evaluation.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/trained_options.h"

namespace bellows::cli {

namespace {

using nlohmann::ordered_json;
using train::ModelEvaluation;
using train::TrainedModel;

/// "run/step-000000000045.pt (step 45, averaged weights)"
std::string weights_text(const TrainedModel& trained) {
  std::string text = trained.weights.empty() ? trained.job.recipe.model : trained.weights;
  if (trained.step >= 0) text += c10::str(" (step ", trained.step, trained.averaged ? ", averaged weights)" : ")");
  return text;
}

std::string seconds_text(double seconds) {
  return std::isfinite(seconds) ? format_seconds(seconds) : "-";
}

std::string table(const TrainedModel& trained, const ModelEvaluation& result) {
  const train::Evaluation& evaluation = result.evaluation;
  const bool tokens = trained.job.task.loss == train::LossKind::next_token;
  std::vector<std::pair<std::string, std::string>> rows = {
      {"model", trained.job.recipe.model},
      {"weights", weights_text(trained)},
      {"data", result.data},
      {tokens ? "tokens" : "samples", std::to_string(evaluation.samples)},
      {"loss", number("%.4f", evaluation.loss)}};
  if (std::isfinite(evaluation.accuracy)) rows.emplace_back("accuracy", number("%.2f %%", 100 * evaluation.accuracy));
  for (const auto& [name, value] : evaluation.metrics) rows.emplace_back(name, number("%.4f", value));
  rows.emplace_back(tokens ? "tokens/s" : "samples/s", number("%.0f", result.samples_per_second));
  rows.emplace_back("latency", c10::str("median ", seconds_text(result.latency_median_s), ", 90 % below ",
                                        seconds_text(result.latency_p90_s), " per batch of ", result.batch_size));
  rows.emplace_back("weights size", c10::str(result.weight_bytes, " bytes (",
                                             format_bytes(static_cast<double>(result.weight_bytes)), ")"));
  size_t width = 0;
  for (const auto& [name, value] : rows) width = std::max(width, display_width(name));
  std::string text;
  for (const auto& [name, value] : rows) text += pad_right(name, width + 2) + value + "\n";
  return text;
}

ordered_json finite(double value) {
  return number_or_null<ordered_json>(value);
}

ordered_json result_json(const TrainedModel& trained, const ModelEvaluation& result) {
  const train::Evaluation& evaluation = result.evaluation;
  ordered_json metrics = ordered_json::object();
  for (const auto& [name, value] : evaluation.metrics) metrics[name] = finite(value);
  return {{"model", trained.job.recipe.model},
          {"weights", trained.weights},
          {"step", trained.step >= 0 ? ordered_json(trained.step) : ordered_json(nullptr)},
          {"averaged", trained.averaged},
          {"data", result.data},
          {"samples", evaluation.samples},
          {"loss", finite(evaluation.loss)},
          {"accuracy", finite(evaluation.accuracy)},
          {"metrics", metrics},
          {"seconds", evaluation.seconds},
          {"samples_per_second", result.samples_per_second},
          {"batches", result.batches},
          {"batch_size", result.batch_size},
          {"latency_median_s", finite(result.latency_median_s)},
          {"latency_p90_s", finite(result.latency_p90_s)},
          {"weight_bytes", result.weight_bytes}};
}

}  // namespace

int run_evaluate(const EvaluateArguments& arguments) {
  check_output_file(arguments.json);
  const train::Recipe recipe = trained_recipe(arguments);
  const Interrupt interrupt("no result is printed");
  const TrainedModel trained = load_trained_model(arguments, recipe);
  const ModelEvaluation result = train::evaluate(trained, {.data = arguments.data,
                                                           .split = arguments.split,
                                                           .batch_size = arguments.batch_size,
                                                           .compile = arguments.compile});
  if (arguments.json != "-") Terminal().print(table(trained, result));
  write_json(arguments.json, json_text(result_json(trained, result)));
  return exit_done;
}

}  // namespace bellows::cli
