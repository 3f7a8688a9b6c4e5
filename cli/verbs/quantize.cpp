#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bellows/core/stats.h"
#include "bellows/quant/file.h"
#include "bellows/system/file.h"
#include "bellows/train/inference/quantization.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/options.h"
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
  if (arguments.method != "static" && arguments.range != "min_max")
    throw UsageError("--range requires --method static.");
}

train::QuantizationGoal goal_of(const QuantizeArguments& arguments) {
  train::QuantizationGoal goal{
      .options = {.method = quant::method_of(arguments.method == "weight-only" ? "weight_only" : arguments.method),
                  .weights = weights_of(arguments),
                  .activations = {.method = quant::range_method(arguments.range)},
                  .rounding = quant::rounding_of(arguments.rounding),
                  .smooth = arguments.smooth,
                  .correct_bias = arguments.correct_bias,
                  .skip = arguments.skip,
                  .strict = arguments.strict},
      .samples = arguments.samples,
      .evaluation = {
          .data = arguments.data, .split = arguments.split, .batch_size = arguments.batch_size, .compile = true}};
  if (arguments.max_drop >= 0) goal.max_drop = arguments.max_drop / 100;
  return goal;
}

std::string milliseconds(double seconds) {
  return number("%.2f ms", 1e3 * seconds);
}

std::string size_of(const ModelEvaluation& evaluation) {
  return format_bytes(static_cast<double>(evaluation.weight_bytes));
}

std::string comparison(const QuantizationResult& result) {
  const ModelEvaluation &before = result.before, &after = result.after;
  const bool has_accuracy = std::isfinite(before.evaluation.accuracy);
  const auto percent = [](const ModelEvaluation& one) { return number("%.2f %%", 100 * one.evaluation.accuracy); };
  std::vector<std::array<std::string, 4>> rows = {{"", "original", "quantized", ""}};
  if (has_accuracy)
    rows.push_back({"accuracy", percent(before), percent(after), number("%+.2f points", 100 * result.change())});
  rows.push_back({"loss", number("%.4f", before.evaluation.loss), number("%.4f", after.evaluation.loss), ""});
  rows.push_back({"latency", milliseconds(before.latency_median_s), milliseconds(after.latency_median_s),
                  number("%.2f× as fast", before.latency_median_s / after.latency_median_s)});
  rows.push_back({"size", size_of(before), size_of(after),
                  number("%.1f %%", 100.0 * static_cast<double>(after.weight_bytes) /
                                        static_cast<double>(std::max<int64_t>(1, before.weight_bytes)))});
  std::string text;
  for (const auto& [name, first, second, note] : rows)
    text += pad_right(name, 10) + pad_left(first, 12) + pad_left(second, 12) + (note.empty() ? "" : "  " + note) + "\n";
  return text + c10::str("Latency: median time of a batch of ", before.batch_size, ", compiled.\nData: ", before.data,
                         ", ", before.evaluation.samples, " samples.\n");
}

ordered_json evaluation_json(const ModelEvaluation& one) {
  return {{"loss", number_or_null<ordered_json>(one.evaluation.loss)},
          {"accuracy", number_or_null<ordered_json>(one.evaluation.accuracy)},
          {"latency_median_s", number_or_null<ordered_json>(one.latency_median_s)},
          {"latency_p90_s", number_or_null<ordered_json>(one.latency_p90_s)},
          {"batch_size", one.batch_size},
          {"samples", one.evaluation.samples},
          {"weight_bytes", one.weight_bytes}};
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
          {"calibration_samples", result.calibration_samples},
          {"data", result.before.data},
          {"before", evaluation_json(result.before)},
          {"after", evaluation_json(result.after)},
          {"kept_for_accuracy", result.kept},
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
  const QuantizationResult result = train::quantize(trained, goal_of(arguments));
  if (!arguments.out.empty()) quant::save_quantized(arguments.out, result.quantized);
  if (!arguments.html.empty()) write_text_file(arguments.html, train::quantization_page(trained, result));
  if (arguments.json != "-") {
    Terminal terminal;
    terminal.print(result.quantized.report.to_text() + "\n" + comparison(result));
    if (!arguments.out.empty()) terminal.print("Saved " + arguments.out + ".\n");
  }
  write_json(arguments.json, json_text(result_json(arguments, result)));
  return exit_done;
}

}  // namespace bellows::cli
