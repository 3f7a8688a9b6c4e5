#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "bellows/ladder/ladder.h"
#include "bellows/techniques/inference_technique.h"
#include "bellows/train/inference/model_evaluation.h"
#include "bellows/train/inference/trained_model.h"

namespace bellows::train {

/// How the jobs of a ladder for inference get their model and their inputs.
struct InferenceSource {
  /// Loads the model of a recipe. Each call must give the same weights.
  std::function<TrainedModel(const Recipe&)> load;
  InferenceSettings start{};  ///< rung 0, with which outputs are compared
  /// The evaluation data and the batch size. If the recipe has no data, the inputs are examples of the model's input kind
  /// (models::example_inputs).
  EvaluationOptions evaluation{};
  int64_t calibration_samples = 256;  ///< for int8
  double max_drop = 0.005;            ///< as a share, for InferenceSettings::keep_sensitive_layers
};

/// Creates a job that runs a model on its first evaluation batches, which stay in memory. The peak memory includes the
/// weights, but not the inputs.
/// Throws: exceptions of `load`, and c10::ValueError if there is no evaluation data, or if the model cannot be quantized
std::unique_ptr<LadderJob> make_inference_job(const InferenceSource& source, const InferenceSettings& settings);

}  // namespace bellows::train
