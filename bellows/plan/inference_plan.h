#pragma once

#include <cstdint>
#include <vector>

#include "bellows/parallel/placement/device_map.h"
#include "bellows/plan/dry_run.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// The predicted memory of inference.
struct InferencePlan {
  StepSize size;                              ///< input size of one forward pass
  std::vector<parallel::WeightSize> weights;  ///< the parameters in the recipe's precision
  int64_t weight_bytes = 0;                   ///< their sum
  int64_t buffer_bytes = 0;                   ///< buffers of the model
  int64_t activation_bytes = 0;               ///< peak of inputs, activations and temporary tensors in a forward pass
  bool fits_law =
      true;  ///< whether the measured activations follow a law of batch and length; if not, they are an estimate

  /// Decides where the weights are. Buffers and activations count as part of the device's budget.
  /// Throws: c10::ValueError like infer_device_map()
  parallel::DeviceMap device_map(int64_t device_bytes, int64_t host_bytes = 0) const;
};

/// Predicts the memory of a forward pass in evaluation mode. The model is created without memory for its weights, and
/// runs on two or three small batches with any values. From these runs, the peak of the activations is derived as a
/// function of batch size and length.
/// Numerics: an upper estimate. For the models of tests/plan/inference_plan_test.cpp, the activations are up to 25 % above
///           the measured peak
/// Cost:     two or three small forward passes of the full model
/// Throws:   c10::ValueError if the model does not exist, does not accept such a batch, or is a TorchScript file
InferencePlan plan_inference(const Recipe& recipe, const StepSize& size);

}  // namespace bellows::train
