#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::bench {

/// A forward pass that is quantized, by its name in bench/peers/quant.py.
struct InferenceTask {
  std::string name, about;
  int64_t length = 0;  ///< tokens; 0: an image

  bool is_text() const { return length > 0; }
};

const std::vector<InferenceTask>& inference_tasks();

/// Returns a model with formula weights in evaluation mode.
Model model_of(const InferenceTask& task);
/// Returns the calibration inputs, as in bench/peers/quant.py. The first one is the measured input.
std::vector<std::vector<at::Tensor>> calibration_of(const InferenceTask& task);

}  // namespace bellows::bench
