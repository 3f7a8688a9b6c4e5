#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/quant/scheme.h"

/// Affine quantization as PyTorch defines it.
///
/// For all functions:
/// Numerics: q = clamp(round(x / scale) + zero_point), with ties rounded to even. The division is a multiplication by
///           the fp32 reciprocal of the scale, as in torch.quantize_per_tensor and torch.fake_quantize_per_tensor_affine.
///           Integers, scales and zero points are equal to PyTorch's (tests/quant/affine_test.cpp)
/// Threads:  thread-safe
/// Throws:   c10::ValueError if the scheme is invalid or does not match the tensor (rows.h)
namespace bellows::quant {

/// Scales and zero points, in the shape of parameter_shape().
struct Parameters {
  at::Tensor scale{};       ///< fp32, positive
  at::Tensor zero_point{};  ///< int32
};

/// Returns the parameters for values in [low, high]. The range is extended to include 0, so that 0 is exact. A range
/// that contains only 0 gets the smallest scale, 2^−23.
/// Params: low, high – in the shape of parameter_shape(), floating-point
/// Throws: c10::ValueError if a bound is NaN or infinite, or if low exceeds high
/// Ref:    torch.ao.quantization.observer.UniformQuantizationObserverBase.calculate_qparams
Parameters choose_parameters(const at::Tensor& low, const at::Tensor& high, const Scheme& scheme);
/// The same without a check of the bounds, so that no value is read on the host: in compiled steps, and on accelerators.
/// NaN bounds give a NaN scale.
Parameters unchecked_parameters(const at::Tensor& low, const at::Tensor& high, const Scheme& scheme);
/// Returns the parameters for the minimum and maximum of a tensor.
Parameters choose_parameters(const at::Tensor& x, const Scheme& scheme);

/// A tensor in integers. Each integer takes one byte; packed.h stores fewer bits.
struct QuantizedTensor {
  at::Tensor values{};  ///< int8 or uint8, in the shape of the original tensor
  Parameters parameters{};
  Scheme scheme{};

  /// Returns (values − zero_point) · scale.
  at::Tensor dequantize(at::ScalarType dtype = at::kFloat) const;
};

/// Params: x – floating-point; is converted to fp32
/// Throws: c10::ValueError if x contains NaN. Infinite values saturate
QuantizedTensor quantize(const at::Tensor& x, const Parameters& parameters, const Scheme& scheme);
/// Quantizes with the parameters that choose_parameters() returns for the tensor.
QuantizedTensor quantize(const at::Tensor& x, const Scheme& scheme);

/// Returns quantize(x).dequantize() with a straight-through gradient: 1 where x is in the range of the integers, and 0
/// where it saturates. For quantization-aware training.
/// Ref: torch.fake_quantize_per_channel_affine
at::Tensor fake_quantize(const at::Tensor& x, const Parameters& parameters, const Scheme& scheme);

/// fake_quantize() with a scale that is trained, too (learned step size).
/// Params: scale           – in the shape of parameter_shape(); receives a gradient
///         gradient_factor – factor of the gradient of the scale; 0: 1 / sqrt(values per scale · largest integer)
/// Ref:    arXiv:1902.08153; torch._fake_quantize_learnable_per_channel_affine
at::Tensor learned_fake_quantize(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point,
                                 const Scheme& scheme, double gradient_factor = 0);

/// Returns the signal-to-quantization-noise ratio in decibels: 10 · log10(Σ x² / Σ (x − y)²). Infinity if both tensors are
/// equal.
double sqnr(const at::Tensor& x, const at::Tensor& y);
/// Returns 10 · log10(signal / noise) of two sums of squares. Infinity if there is no noise.
double decibels(double signal, double noise);

}  // namespace bellows::quant
