#include "bellows/quant/methods/smooth_quant.h"

#include <ATen/TensorOperators.h>

#include "bellows/quant/methods/weight_matrix.h"

namespace bellows::quant {

at::Tensor smooth_quant_scales(const at::Tensor& weight, const InputStatistics& inputs, double alpha) {
  TORCH_CHECK_VALUE(alpha >= 0 && alpha <= 1, "smooth_quant_scales: expected an `alpha` in [0, 1], got ", alpha, ".");
  const at::Tensor matrix = weight_matrix(weight, {}, "smooth_quant_scales");
  check_inputs(matrix, inputs, "smooth_quant_scales");
  const at::Tensor largest_inputs = inputs.max_abs(), largest_weights = matrix.abs().amax(0);
  const at::Tensor scales =
      (largest_inputs.pow(alpha) / largest_weights.clamp_min(1e-5).pow(1 - alpha)).clamp_min(1e-5);
  return scales.masked_fill((largest_inputs == 0).logical_or(largest_weights == 0), 1);
}

}  // namespace bellows::quant
