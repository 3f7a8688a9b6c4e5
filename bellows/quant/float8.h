#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/quant/scheme.h"

namespace bellows::quant {

/// 8-bit floating-point values with a scale: x ≈ values · scale.
struct Float8Tensor {
  at::Tensor values{};  ///< Float8_e4m3fn or Float8_e5m2, in the shape of the original tensor
  at::Tensor scale{};   ///< fp32, in the shape of parameter_shape()
  Scheme scheme{};      ///< only the granularity, axis and group_size apply

  at::Tensor dequantize(at::ScalarType dtype = at::kFloat) const;
};

/// Quantizes to 8-bit floating-point values. The largest magnitude of each row becomes the largest finite value of the
/// dtype, which is 448 for e4m3 and 57344 for e5m2. Rows of zeros have the scale 1.
/// Params:   dtype – at::kFloat8_e4m3fn or at::kFloat8_e5m2
/// Numerics: values are rounded to the nearest value, with ties to even, as in Tensor.to(dtype)
/// Throws:   c10::ValueError if x contains NaN or infinite values, or for another dtype
Float8Tensor quantize_float8(const at::Tensor& x, at::ScalarType dtype, const Scheme& granularity = {});

}  // namespace bellows::quant
