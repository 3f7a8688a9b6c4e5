#include "bellows/quant/methods/input_statistics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/zeros.h>

namespace bellows::quant {

InputStatistics::InputStatistics(int64_t features) : features_(features) {
  TORCH_CHECK_VALUE(features > 0, "InputStatistics: expected at least one feature, got ", features, ".");
  products_ = at::zeros({features, features}, at::kDouble);
  sum_ = at::zeros({features}, at::kDouble);
  sum_abs_ = at::zeros({features}, at::kDouble);
  max_abs_ = at::zeros({features}, at::kFloat);
}

void InputStatistics::add(const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.defined() && x.is_floating_point() && x.dim() > 0 && x.size(-1) == features_,
                    "InputStatistics: expected floating-point inputs of shape [*, ", features_, "], got ",
                    x.defined() ? c10::str(x.scalar_type(), " ", x.sizes()) : "an undefined tensor", ".");
  const at::Tensor rows = x.detach().to(at::kCPU, at::kFloat).reshape({-1, features_});
  if (rows.size(0) == 0) return;
  const at::Tensor products = at::matmul(rows.t(), rows);
  // A value that is NaN or infinite makes the sum of the squares of its feature NaN or infinite.
  const at::Tensor valid = at::isfinite(products.diagonal());
  TORCH_CHECK_VALUE(valid.all().item<bool>(), "InputStatistics: expected finite inputs with finite squares, but ",
                    (valid == 0).sum().item<int64_t>(), " of ", features_,
                    " features have values that are NaN, infinite or too large. Check the calibration data.");
  const at::Tensor magnitudes = rows.abs();
  products_ += products;
  sum_ += rows.sum(0, /*keepdim=*/false, at::kDouble);
  sum_abs_ += magnitudes.sum(0, /*keepdim=*/false, at::kDouble);
  max_abs_ = at::maximum(max_abs_, magnitudes.amax(0));
  tokens_ += rows.size(0);
}

void InputStatistics::check_not_empty() const {
  TORCH_CHECK_VALUE(tokens_ > 0, "InputStatistics: expected calibration data, but no inputs were added for the ",
                    features_, " features of this layer. Run the model on calibration data first.");
}

at::Tensor InputStatistics::second_moment() const {
  check_not_empty();
  return products_ / tokens_;
}

at::Tensor InputStatistics::mean() const {
  check_not_empty();
  return (sum_ / tokens_).to(at::kFloat);
}

at::Tensor InputStatistics::mean_abs() const {
  check_not_empty();
  return (sum_abs_ / tokens_).to(at::kFloat);
}

at::Tensor InputStatistics::max_abs() const {
  check_not_empty();
  return max_abs_.clone();
}

InputStatistics InputStatistics::divided_by(const at::Tensor& scales) const {
  TORCH_CHECK_VALUE(scales.dim() == 1 && scales.size(0) == features_ && (scales > 0).all().item<bool>(),
                    "InputStatistics: expected positive scales of shape [", features_, "], got ", scales.sizes(), ".");
  const at::Tensor exact = scales.to(at::kDouble);
  InputStatistics divided(features_);
  divided.tokens_ = tokens_;
  divided.products_ = products_ / at::outer(exact, exact);
  divided.sum_ = sum_ / exact;
  divided.sum_abs_ = sum_abs_ / exact;
  divided.max_abs_ = max_abs_ / scales.to(at::kFloat);
  return divided;
}

double output_error(const at::Tensor& difference, const InputStatistics& inputs) {
  TORCH_CHECK_VALUE(difference.dim() == 2 && difference.size(0) > 0 && difference.size(1) == inputs.features(),
                    "output_error: expected a difference of weights of shape [out, ", inputs.features(), "], got ",
                    difference.sizes(), ".");
  const at::Tensor exact = difference.to(at::kDouble);
  return (at::matmul(exact, inputs.second_moment()) * exact).sum().item<double>() / static_cast<double>(exact.size(0));
}

}  // namespace bellows::quant
