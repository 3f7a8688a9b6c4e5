#include "bellows/train/inference/quantization.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "bellows/core/log.h"
#include "bellows/core/progress.h"
#include "bellows/system/stop.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/loss.h"
#include "bellows/train/step/batch_placement.h"

namespace bellows::train {

namespace {

using Inputs = std::vector<std::vector<at::Tensor>>;

/// The quantized layers, the one with the largest errors first.
std::vector<std::string> by_sensitivity(const quant::Report& report) {
  std::vector<const quant::LayerReport*> layers;
  for (const quant::LayerReport& layer : report.layers) {
    if (layer.kept.empty()) layers.push_back(&layer);
  }
  std::stable_sort(layers.begin(), layers.end(),
                   [](const auto* a, const auto* b) { return a->result_sqnr < b->result_sqnr; });
  std::vector<std::string> names;
  names.reserve(layers.size());
  for (const quant::LayerReport* layer : layers) names.push_back(layer->name);
  return names;
}

/// Repeats quantization with more layers in floating point until the accuracy is high enough.
void reach_goal(const TrainedModel& trained, const QuantizationGoal& goal, const Inputs& calibration,
                QuantizationResult& result) {
  const std::vector<std::string> layers = by_sensitivity(result.quantized.report);
  const size_t most = layers.size() - 1;  // at least one layer is quantized
  const auto lost = [&] { return 100 * (result.before.evaluation.accuracy - result.after.evaluation.accuracy); };
  for (size_t kept = 1; lost() > 100 * *goal.max_drop; kept *= 2) {
    TORCH_CHECK_VALUE(result.kept.size() < most, "quantize: the accuracy falls by ", lost(), " points, although ",
                      result.kept.size(), " of ", layers.size(),
                      " layers stay in floating point. Allow a larger `max_drop`, use more calibration samples, or "
                      "choose another method.");
    const size_t count = std::min(kept, most);
    log_info("quantize: the accuracy falls by ", lost(), " points. Keeping the ", count,
             " most sensitive layers in floating point.");
    result.kept.assign(layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(count));
    quant::Options options = goal.options;
    options.skip.insert(options.skip.end(), result.kept.begin(), result.kept.end());
    result.quantized = quant::quantize(trained.model, options, calibration);
    result.after = evaluate(with_quantized(trained, result.quantized), goal.evaluation);
  }
}

/// Whether quantization with these options computes the integers of quantization-aware training.
bool fits_training(const QuantizationGoal& goal) {
  const quant::Options& options = goal.options;
  return !goal.calibrate && options.method == quant::Method::static_range &&
         options.activations.method == quant::RangeMethod::min_max && options.rounding == quant::Rounding::nearest &&
         options.smooth == 0 && !options.correct_bias;
}

/// Uses the ranges from quantization-aware training, if there are any.
/// Params: warnings – receives the reason why they are not used
QuantizationGoal with_trained_layers(QuantizationGoal goal, const TrainedModel& trained,
                                     std::vector<std::string>& warnings) {
  quant::Options& options = goal.options;
  if (trained.trained_layers.empty() || !options.trained.empty()) return goal;
  if (fits_training(goal)) {
    options.trained = trained.trained_layers;
    return goal;
  }
  warnings.emplace_back(
      "quantize: the model was trained with quantize = int8, but these options differ from training, so the ranges "
      "from "
      "training are not used. Use the method static without options for ranges, rounding or corrections.");
  log_warn(warnings.back());
  return goal;
}

}  // namespace

QuantizationResult quantize(const TrainedModel& trained, const QuantizationGoal& given) {
  std::vector<std::string> warnings;
  const QuantizationGoal goal = with_trained_layers(given, trained, warnings);
  TORCH_CHECK_VALUE(!trained.quantized, "quantize: ", trained.weights,
                    " contains a quantized model already. Quantize the model with its original weights.");
  TORCH_CHECK_VALUE(!goal.max_drop || (*goal.max_drop >= 0 && *goal.max_drop <= 1),
                    "quantize: expected `max_drop` from 0 to 1, got ", goal.max_drop.value_or(0), ".");
  const Inputs calibration = calibration_inputs(trained, goal.samples);
  QuantizationResult result{.quantized = quant::quantize(trained.model, goal.options, calibration),
                            .before = evaluate(trained, goal.evaluation),
                            .after = {},
                            .trained_ranges = !goal.options.trained.empty(),
                            .warnings = std::move(warnings)};
  TORCH_CHECK_VALUE(!goal.max_drop || std::isfinite(result.before.evaluation.accuracy),
                    "quantize: `max_drop` needs a task with an accuracy. This task has only a loss.");
  for (const auto& batch : calibration) result.calibration_samples += batch.front().size(0);
  result.after = evaluate(with_quantized(trained, result.quantized), goal.evaluation);
  if (goal.max_drop) reach_goal(trained, goal, calibration, result);
  return result;
}

std::vector<std::vector<at::Tensor>> calibration_inputs(const TrainedModel& trained, int64_t samples) {
  TORCH_CHECK_VALUE(samples > 0, "quantize: expected at least 1 calibration sample, got ", samples, ".");
  TORCH_CHECK_VALUE(trained.job.data,
                    "quantize: the recipe has no dataset for calibration. Set the key data in the recipe.");
  constexpr uint64_t seed = 0;  // the same samples in each run
  constexpr int64_t largest_batch = 32;
  const DataSplit& split = trained.job.split();
  const data::Dataset training = split.held_out.empty() ? split.whole : split.whole.subset(split.trained());
  const int64_t batch = std::min({samples, largest_batch, trained.job.recipe.batch_size});
  data::Loader loader = evaluation_batches(trained.job, training).shuffle(seed).batch(batch).loader();
  Progress progress("calibration data", samples, "samples");
  Inputs inputs;
  int64_t read = 0;
  loader.start(0);
  while (read < samples) {
    throw_if_stopped("reading calibration data");
    auto next = loader.next();
    if (!next) break;
    const data::Batch one = placed(std::move(*next), trained.job.recipe, c10::kCPU);
    if (one.size() == 0) continue;
    std::vector<at::Tensor> tensors = model_inputs(trained.model, one);
    const int64_t used = std::min(one.size(), samples - read);
    for (at::Tensor& tensor : tensors) {
      if (tensor.defined() && tensor.size(0) == one.size()) tensor = tensor.narrow(0, 0, used);
    }
    inputs.push_back(std::move(tensors));
    read += used;
    progress.advance(used);
  }
  progress.finish();
  return inputs;
}

TrainedModel with_quantized(const TrainedModel& trained, const quant::Quantized& quantized) {
  TrainedModel made = trained;
  made.model = quantized.model;
  made.quantized = true;
  return made;
}

}  // namespace bellows::train
