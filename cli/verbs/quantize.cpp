#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bellows/core/log.h"
#include "bellows/quant/file.h"
#include "bellows/system/file.h"
#include "bellows/train/inference/quantization.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/tables/model_table.h"
#include "cli/terminal.h"
#include "cli/trained_options.h"

namespace bellows::cli {

namespace {

using nlohmann::ordered_json;
using train::ModelEvaluation;
using train::QuantizationResult;

quant::Scheme weights_of(const QuantizeArguments& arguments) {
  const auto bits = static_cast<int>(arguments.bits);
  return arguments.group > 0 ? quant::group_scheme(bits, arguments.group) : quant::weight_scheme(bits);
}

void check_options(const QuantizeArguments& arguments) {
  const bool integers = arguments.method != "weight-only";
  if (integers && (arguments.bits != 8 || arguments.group > 0))
    throw UsageError("--bits and --group require --method weight-only.");
  if (integers && arguments.rounding == "awq") throw UsageError("--rounding awq requires --method weight-only.");
  if (!integers && arguments.smooth > 0) throw UsageError("--smooth requires --method static or dynamic.");
  if (!arguments.out.empty() && !arguments.out.ends_with(".safetensors"))
    throw UsageError("--out: expected a file name that ends with .safetensors, got " + arguments.out + ".");
  if (arguments.method != "static" && !arguments.range.empty()) throw UsageError("--range requires --method static.");
}

std::string range_of(const QuantizeArguments& arguments) {
  return arguments.range.empty() ? "min_max" : arguments.range;
}

train::QuantizationGoal goal_of(const QuantizeArguments& arguments) {
  train::QuantizationGoal goal{
      .options = {.method = quant::method_of(arguments.method == "weight-only" ? "weight_only" : arguments.method),
                  .weights = weights_of(arguments),
                  .activations = {.method = quant::range_method(range_of(arguments))},
                  .rounding = quant::rounding_of(arguments.rounding),
                  .smooth = arguments.smooth,
                  .correct_bias = arguments.correct_bias,
                  .quantize_embeddings = !arguments.keep_embeddings,
                  .skip = arguments.skip,
                  .strict = arguments.strict},
      .calibrate = !arguments.range.empty(),
      .evaluation = {
          .data = arguments.data, .split = arguments.split, .batch_size = arguments.batch_size, .compile = true}};
  if (arguments.samples > 0) goal.samples = arguments.samples;
  if (arguments.max_drop >= 0) goal.max_drop = arguments.max_drop / 100;
  return goal;
}

std::string comparison(const QuantizationResult& result) {
  const ModelEvaluation& before = result.before;
  return model_table(
             {{.title = "original", .evaluation = before}, {.title = "quantized", .evaluation = result.after}}) +
         c10::str("Latency: median time of a batch of ", before.batch_size, ", compiled.\nData: ", before.data, ", ",
                  before.evaluation.samples, " samples.\n");
}

/// The origin of the ranges of activations. Only the method static has such ranges.
std::string ranges_text(const QuantizeArguments& arguments, const QuantizationResult& result) {
  if (arguments.method != "static") return "";
  if (result.trained_ranges) return "Ranges of activations: from quantization-aware training.\n";
  return c10::str("Ranges of activations: ", range_of(arguments), " of ", result.calibration_samples,
                  result.calibration_samples == 1 ? " training sample.\n" : " training samples.\n");
}

/// Options that the user set, but that have no effect.
void add_warnings(const QuantizeArguments& arguments, QuantizationResult& result) {
  if (!result.trained_ranges || arguments.samples == 0) return;
  result.warnings.emplace_back(
      "quantize: --samples has no effect on the ranges of activations, because they come from training with quantize = "
      "int8. To calibrate the ranges instead, pass --range.");
  log_warn(result.warnings.back());
}

ordered_json result_json(const QuantizeArguments& arguments, const QuantizationResult& result) {
  ordered_json layers = ordered_json::array();
  for (const quant::LayerReport& layer : result.quantized.report.layers) {
    layers.push_back({{"name", layer.name},
                      {"kind", quant::name_of(layer.kind)},
                      {"quantized", layer.kept.empty()},
                      {"reason", layer.kept},
                      {"bytes_before", layer.bytes_before},
                      {"bytes_after", layer.bytes_after},
                      {"weight_sqnr_db", number_or_null<ordered_json>(layer.weight_sqnr)},
                      {"result_sqnr_db", number_or_null<ordered_json>(layer.result_sqnr)}});
  }
  return {{"method", arguments.method},
          {"bits", arguments.bits},
          {"group", arguments.group},
          {"rounding", arguments.rounding},
          {"ranges", arguments.method != "static" ? ordered_json(nullptr)
                     : result.trained_ranges      ? "training"
                                                  : "calibration"},
          {"calibration_samples", result.calibration_samples},
          {"data", result.before.data},
          {"before", evaluation_json(result.before)},
          {"after", evaluation_json(result.after)},
          {"kept_for_accuracy", result.kept},
          {"warnings", result.warnings},
          {"file", arguments.out},
          {"layers", std::move(layers)}};
}

}  // namespace

int run_quantize(const QuantizeArguments& arguments) {
  check_options(arguments);
  check_output_file(arguments.json);
  for (const std::string& file : {arguments.out, arguments.html}) check_output_file(file);
  const train::Recipe recipe = trained_recipe(arguments);
  const Interrupt interrupt("nothing is saved");
  const train::TrainedModel trained = load_trained_model(arguments, recipe);
  QuantizationResult result = train::quantize(trained, goal_of(arguments));
  add_warnings(arguments, result);
  if (!arguments.out.empty()) quant::save_quantized(arguments.out, result.quantized);
  if (!arguments.html.empty()) write_text_file(arguments.html, train::quantization_page(trained, result));
  if (arguments.json != "-") {
    Terminal terminal;
    terminal.print(result.quantized.report.to_text() + "\n" + comparison(result) + ranges_text(arguments, result));
    if (!arguments.out.empty()) terminal.print("Saved " + arguments.out + ".\n");
  }
  write_json(arguments.json, json_text(result_json(arguments, result)));
  return exit_done;
}

}  // namespace bellows::cli
