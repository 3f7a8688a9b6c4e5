#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/quant/affine.h"

/// Operators of quantization-aware training that compute ranges and scales. Each is one operator, so that eager and
/// compiled steps have few operators. Their plain implementation defines the results. Code generation has formulas for
/// them, whose results are bit-identical (graph/passes/fake_quantize_formulas.h). Without gradients.
namespace bellows::quant {

/// Returns the next moving average of a range: fp32 [2], the lower and the upper bound.
/// Params: range – fp32 [2]; infinite bounds are replaced by those of `x`
///         weight – of the bounds of `x` in the average
at::Tensor moving_range(const at::Tensor& range, const at::Tensor& x, double weight);

/// Returns the uint8 parameters of a range, as scalars.
/// Params: range – fp32 [2]
///         centered – use the zero point 128 if the lower bound is negative
Parameters range_parameters(const at::Tensor& range, bool centered);

/// Returns symmetric parameters for each row of a weight [rows, …].
/// Params: half_range – integers from 0 to the largest absolute value of a row, such as 127.5
Parameters row_parameters(const at::Tensor& weight, double half_range);

}  // namespace bellows::quant
