#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/quant/affine.h"

namespace bellows::quant {

struct HqqOptions {
  double norm = 0.7;    ///< p of the norm of the errors, in (0, 1]. A smaller p permits larger errors of a few weights
  double beta = 10;     ///< initial weight of the quadratic term, positive
  double kappa = 1.01;  ///< factor of beta after each iteration, at least 1
  int iterations = 20;
};

/// Half-quadratic quantization (HQQ): chooses scales and zero points without calibration data. Each iteration quantizes
/// the weight, splits its errors into a sparse part and a rest, and fits scales and zero points to the rest. Each scale
/// and zero point is taken from the iteration with the smallest mean absolute error.
/// Params:   weight – floating-point, [out, in]
///           scheme – granularity tensor, channel (axis 0) or group
/// Numerics: fp32, deterministic. In contrast to the original, errors are measured in steps of the initial scale, zero
///           points are integers, and scales are fitted, too. Symmetric schemes keep their zero point
/// Threads:  thread-safe
/// Throws:   c10::ValueError if the weight is not a finite matrix, or if an option is out of range
/// Ref:      Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023; optimize.py of
///           mobiusml/hqq
QuantizedTensor hqq(const at::Tensor& weight, const Scheme& scheme, const HqqOptions& options = {});

}  // namespace bellows::quant
