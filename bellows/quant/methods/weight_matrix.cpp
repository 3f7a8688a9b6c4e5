#include "bellows/quant/methods/weight_matrix.h"

#include <ATen/ops/isfinite.h>

#include "bellows/quant/rows.h"

namespace bellows::quant {

at::Tensor weight_matrix(const at::Tensor& weight, const Scheme& scheme, const char* method) {
  scheme.check();
  TORCH_CHECK_VALUE(weight.defined() && weight.is_floating_point() && weight.dim() == 2 && weight.numel() > 0, method,
                    ": expected a floating-point weight of shape [out, in], got ",
                    weight.defined() ? c10::str(weight.scalar_type(), " ", weight.sizes()) : "an undefined tensor",
                    ". Reshape the weight of a convolution to [out, in · kernel height · kernel width].");
  TORCH_CHECK_VALUE(scheme.granularity != Granularity::channel || scheme.axis == 0 || scheme.axis == -2, method, " (",
                    scheme.to_text(),
                    "): expected one scale per output channel (axis 0), per group, or for the whole weight.");
  parameter_shape(weight.sizes(), scheme);  // checks the group size
  const at::Tensor matrix = weight.detach().to(at::kCPU, at::kFloat).contiguous();
  TORCH_CHECK_VALUE(at::isfinite(matrix).all().item<bool>(), method, ": the weight of shape ", weight.sizes(),
                    " contains NaN or infinite values. Check the model.");
  return matrix;
}

void check_inputs(const at::Tensor& weight, const InputStatistics& inputs, const char* method) {
  TORCH_CHECK_VALUE(inputs.features() == weight.size(1), method, ": expected statistics of ", weight.size(1),
                    " features for a weight of shape ", weight.sizes(), ", got ", inputs.features(), ".");
  TORCH_CHECK_VALUE(inputs.tokens() > 0, method, ": expected calibration data for the weight of shape ", weight.sizes(),
                    ", but the statistics contain no inputs. Run the model on calibration data first.");
}

int64_t columns_per_scale(const at::Tensor& weight, const Scheme& scheme) {
  return scheme.granularity == Granularity::group ? scheme.group_size : weight.size(1);
}

}  // namespace bellows::quant
