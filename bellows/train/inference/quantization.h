#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/quant/quantize.h"
#include "bellows/train/inference/model_evaluation.h"
#include "bellows/train/inference/trained_model.h"

namespace bellows::train {

/// How a trained model is quantized and checked.
struct QuantizationGoal {
  quant::Options options{};
  int64_t samples = 256;  ///< number of training samples for calibration
  /// Calibrates the ranges of activations even if the model was trained with the key `quantize`. By default, the ranges of
  /// training are used, if `options` leaves the integers as in training: the method `static_range`, ranges by `min_max`,
  /// and no rounding or correction.
  bool calibrate = false;
  /// Largest loss of accuracy, as a share: 0.005 is half a percentage point. If quantization loses more, the most
  /// sensitive layers stay in floating point: 1, 2, 4, … layers, until the accuracy is reached. Unset: no limit.
  std::optional<double> max_drop{};
  EvaluationOptions evaluation{};  ///< of both models
};

/// A quantized model and what quantization changed.
struct QuantizationResult {
  quant::Quantized quantized;
  ModelEvaluation before, after;
  int64_t calibration_samples = 0;
  std::vector<std::string> kept{};  ///< layers that stay in floating point because of `max_drop`
  bool trained_ranges = false;      ///< the ranges of activations are those of training with the key `quantize`
  /// Warnings that were logged, such as the reason why ranges of training are not used.
  std::vector<std::string> warnings{};

  /// Returns the accuracy after minus the accuracy before. NaN if the task has no accuracy.
  double change() const { return after.evaluation.accuracy - before.evaluation.accuracy; }
};

/// Quantizes a trained model with training samples as calibration data, and evaluates both models on the held-out data.
/// Shows progress. If the model was trained with the key `quantize`, its ranges are used instead of calibrated ones, see
/// QuantizationGoal::calibrate. Samples then only determine which layers there are, and the errors in the report.
/// Cost:   two evaluations, plus one for each attempt to reach `max_drop`
/// Throws: c10::ValueError if the recipe has no dataset, if the limit is not in [0, 1], or if the task has no accuracy.
///         Also if the limit cannot be reached. Other exceptions are those of quant::quantize() and evaluate(). Stopped
///         after request_stop()
QuantizationResult quantize(const TrainedModel& trained, const QuantizationGoal& goal);

/// Reads inputs for calibration: training samples, chosen with a fixed seed, in batches as in the evaluations of training.
/// Params:  samples – number of samples; fewer if there are fewer training samples
/// Returns: the inputs of each batch, in the order of the model's inputs
/// Throws:  c10::ValueError if the recipe has no dataset, or if `samples` is less than 1. Stopped after request_stop()
std::vector<std::vector<at::Tensor>> calibration_inputs(const TrainedModel& trained, int64_t samples);

/// Returns the same trained model with quantized layers, for evaluate() and predict().
TrainedModel with_quantized(const TrainedModel& trained, const quant::Quantized& quantized);

/// Returns a self-contained HTML page: a table of both models, and a chart of each layer's sensitivity.
std::string quantization_page(const TrainedModel& trained, const QuantizationResult& result);

}  // namespace bellows::train
