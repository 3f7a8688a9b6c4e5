#include "bellows/quant/affine.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fake_quantize_learnable_per_channel_affine.h>
#include <ATen/ops/fake_quantize_per_channel_affine.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/round.h>

#include <cmath>
#include <limits>

#include "bellows/quant/rows.h"

namespace bellows::quant {

namespace {

constexpr double smallest_scale = std::numeric_limits<float>::epsilon();

/// The zero point of a symmetric scheme. PyTorch uses 128 for all values of 8 bits, but 7 for 4 bits.
int64_t middle(const Scheme& scheme) {
  if (scheme.is_signed) return 0;
  return scheme.bits == 8 && !scheme.narrow_range ? 128 : (scheme.smallest() + scheme.largest()) / 2;
}

void check_values(const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.defined() && x.is_floating_point(), "quantization: expected a floating-point tensor, got ",
                    x.defined() ? c10::toString(x.scalar_type()) : "an undefined tensor", ".");
}

void check_parameters(const at::Tensor& x, const Parameters& parameters, const Scheme& scheme) {
  scheme.check();
  check_values(x);
  const std::vector<int64_t> shape = parameter_shape(x.sizes(), scheme);
  const auto fits = [&](const at::Tensor& one) { return one.defined() && one.sizes() == at::IntArrayRef(shape); };
  TORCH_CHECK_VALUE(fits(parameters.scale) && fits(parameters.zero_point), "quantization (", scheme.to_text(),
                    "): expected scales and zero points of shape ", at::IntArrayRef(shape), " for a tensor of shape ",
                    x.sizes(), ", got ", parameters.scale.defined() ? c10::str(parameters.scale.sizes()) : "no scales",
                    " and ",
                    parameters.zero_point.defined() ? c10::str(parameters.zero_point.sizes()) : "no zero points", ".");
}

at::Tensor column(const at::Tensor& parameter) {
  return parameter.reshape({-1, 1});
}

/// The rows without values far outside of the range, for which libtorch's operators overflow instead of saturating.
at::Tensor bounded_rows(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point,
                        const Scheme& scheme) {
  const at::Tensor step = column(scale.detach()), zero = column(zero_point);
  return as_rows(x.to(at::kFloat), scheme)
      .clamp((scheme.smallest() - 1 - zero) * step, (scheme.largest() + 1 - zero) * step);
}

}  // namespace

Parameters choose_parameters(const at::Tensor& low, const at::Tensor& high, const Scheme& scheme) {
  scheme.check();
  const at::Tensor lowest = low.to(at::kFloat), highest = high.to(at::kFloat);
  TORCH_CHECK_VALUE(
      (lowest <= highest).all().item<bool>() && at::isfinite(highest - lowest).all().item<bool>(),
      "quantization: expected finite ranges whose lower end does not exceed the upper end. The ranges are in [",
      lowest.min().item<float>(), ", ", highest.max().item<float>(), "]. Check the data for NaN and infinite values.");
  return unchecked_parameters(lowest, highest, scheme);
}

Parameters unchecked_parameters(const at::Tensor& low, const at::Tensor& high, const Scheme& scheme) {
  const at::Tensor below = low.to(at::kFloat).clamp_max(0), above = high.to(at::kFloat).clamp_min(0);
  const auto steps = static_cast<double>(scheme.largest() - scheme.smallest());
  if (scheme.symmetric) {
    const at::Tensor scale = (at::maximum(-below, above) / (steps / 2)).clamp_min(smallest_scale);
    return {.scale = scale, .zero_point = at::full_like(scale, middle(scheme), at::kInt)};
  }
  const at::Tensor scale = ((above - below) / steps).clamp_min(smallest_scale);
  const at::Tensor zero_point = scheme.smallest() - at::round(below / scale).to(at::kInt);
  return {.scale = scale, .zero_point = zero_point.clamp(scheme.smallest(), scheme.largest())};
}

Parameters choose_parameters(const at::Tensor& x, const Scheme& scheme) {
  scheme.check();
  check_values(x);
  TORCH_CHECK_VALUE(x.numel() > 0, "quantization: expected a tensor with values, got the shape ", x.sizes(), ".");
  const auto [low, high] = as_rows(x, scheme).aminmax(1);
  const std::vector<int64_t> shape = parameter_shape(x.sizes(), scheme);
  return choose_parameters(low.view(shape), high.view(shape), scheme);
}

at::Tensor QuantizedTensor::dequantize(at::ScalarType dtype) const {
  const at::Tensor rows = as_rows(values, scheme).to(at::kInt) - column(parameters.zero_point);
  return from_rows(rows * column(parameters.scale), values.sizes(), scheme).to(dtype);
}

QuantizedTensor quantize(const at::Tensor& x, const Parameters& parameters, const Scheme& scheme) {
  check_parameters(x, parameters, scheme);
  TORCH_CHECK_VALUE(!at::isnan(x).any().item<bool>(), "quantization: the tensor of shape ", x.sizes(),
                    " contains NaN, which has no integer.");
  const at::Tensor scaled = as_rows(x.to(at::kFloat), scheme) * column(parameters.scale).reciprocal();
  // Infinite values must saturate before they become integers.
  const at::Tensor rounded = at::round(scaled) + column(parameters.zero_point);
  const at::Tensor rows =
      rounded.clamp(scheme.smallest(), scheme.largest()).to(scheme.is_signed ? at::kChar : at::kByte);
  return {.values = from_rows(rows, x.sizes(), scheme), .parameters = parameters, .scheme = scheme};
}

QuantizedTensor quantize(const at::Tensor& x, const Scheme& scheme) {
  return quantize(x, choose_parameters(x, scheme), scheme);
}

at::Tensor fake_quantize(const at::Tensor& x, const Parameters& parameters, const Scheme& scheme) {
  check_parameters(x, parameters, scheme);
  const at::Tensor rows = at::fake_quantize_per_channel_affine(
      bounded_rows(x, parameters.scale, parameters.zero_point, scheme), parameters.scale.flatten(),
      parameters.zero_point.flatten(), /*axis=*/0, scheme.smallest(), scheme.largest());
  return from_rows(rows, x.sizes(), scheme).to(x.scalar_type());
}

at::Tensor learned_fake_quantize(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point,
                                 const Scheme& scheme, double gradient_factor) {
  check_parameters(x, {scale, zero_point}, scheme);
  const at::Tensor rows = bounded_rows(x, scale, zero_point, scheme);
  const double largest = std::max<double>(1, static_cast<double>(scheme.largest()));
  const double factor =
      gradient_factor > 0 ? gradient_factor : 1 / std::sqrt(static_cast<double>(rows.size(1)) * largest);
  const at::Tensor quantized =
      at::_fake_quantize_learnable_per_channel_affine(rows, scale.flatten(), zero_point.flatten().to(at::kFloat),
                                                      /*axis=*/0, scheme.smallest(), scheme.largest(), factor);
  return from_rows(quantized, x.sizes(), scheme).to(x.scalar_type());
}

double sqnr(const at::Tensor& x, const at::Tensor& y) {
  TORCH_CHECK_VALUE(x.sizes() == y.sizes(), "sqnr: expected two tensors of one shape, got ", x.sizes(), " and ",
                    y.sizes(), ".");
  const at::Tensor signal = x.to(at::kDouble);
  return decibels(signal.square().sum().item<double>(), (signal - y.to(at::kDouble)).square().sum().item<double>());
}

double decibels(double signal, double noise) {
  return noise == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise);
}

}  // namespace bellows::quant
