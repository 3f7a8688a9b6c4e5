#include "bellows/quant/methods/bias_correction.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mv.h>

#include "bellows/quant/methods/weight_matrix.h"

namespace bellows::quant {

at::Tensor bias_correction(const at::Tensor& weight, const at::Tensor& quantized, const InputStatistics& inputs) {
  const at::Tensor before = weight_matrix(weight, {}, "bias_correction");
  const at::Tensor after = weight_matrix(quantized, {}, "bias_correction");
  TORCH_CHECK_VALUE(before.sizes() == after.sizes(), "bias_correction: expected two weights of one shape, got ",
                    before.sizes(), " and ", after.sizes(), ".");
  check_inputs(before, inputs, "bias_correction");
  return at::mv(before - after, inputs.mean());
}

}  // namespace bellows::quant
