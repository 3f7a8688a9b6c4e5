#include "bellows/quant/methods/equalization.h"

#include <ATen/TensorOperators.h>

#include "bellows/quant/methods/weight_matrix.h"

namespace bellows::quant {

at::Tensor equalization_scales(const at::Tensor& first, const at::Tensor& second) {
  const at::Tensor before = weight_matrix(first, {}, "equalization_scales");
  const at::Tensor after = weight_matrix(second, {}, "equalization_scales");
  const int64_t channels = before.size(0);
  TORCH_CHECK_VALUE(after.size(1) % channels == 0, "equalization_scales: expected a second weight of shape [out, ",
                    channels, " · k] for a first weight of shape ", before.sizes(), ", got ", after.sizes(), ".");
  const at::Tensor produced = before.abs().amax(1);
  const at::Tensor consumed = after.view({after.size(0), channels, -1}).abs().amax(at::IntArrayRef({0, 2}));
  const at::Tensor scales = (produced / consumed).sqrt();
  return scales.masked_fill((produced == 0).logical_or(consumed == 0), 1);
}

}  // namespace bellows::quant
