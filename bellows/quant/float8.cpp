#include "bellows/quant/float8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>

#include <limits>

#include "bellows/quant/rows.h"

namespace bellows::quant {

namespace {

double largest_value(at::ScalarType dtype) {
  if (dtype == at::kFloat8_e4m3fn) return std::numeric_limits<c10::Float8_e4m3fn>::max();
  TORCH_CHECK_VALUE(dtype == at::kFloat8_e5m2, "quantize_float8: expected Float8_e4m3fn or Float8_e5m2, got ", dtype,
                    ".");
  return std::numeric_limits<c10::Float8_e5m2>::max();
}

}  // namespace

at::Tensor Float8Tensor::dequantize(at::ScalarType dtype) const {
  const at::Tensor rows = as_rows(values.to(at::kFloat), scheme);
  return from_rows(rows * scale.reshape({-1, 1}), values.sizes(), scheme).to(dtype);
}

Float8Tensor quantize_float8(const at::Tensor& x, at::ScalarType dtype, const Scheme& granularity) {
  const double largest = largest_value(dtype);
  TORCH_CHECK_VALUE(x.defined() && x.is_floating_point() && x.numel() > 0 && at::isfinite(x).all().item<bool>(),
                    "quantize_float8: expected a floating-point tensor with finite values.");
  const at::Tensor rows = as_rows(x.to(at::kFloat), granularity);
  const at::Tensor amax = rows.abs().amax(1, /*keepdim=*/true);
  const at::Tensor scale = (amax / largest).masked_fill(amax == 0, 1);
  const at::Tensor values = (rows / scale).clamp(-largest, largest).to(dtype);
  return {.values = from_rows(values, x.sizes(), granularity),
          .scale = scale.view(parameter_shape(x.sizes(), granularity)),
          .scheme = granularity};
}

}  // namespace bellows::quant
