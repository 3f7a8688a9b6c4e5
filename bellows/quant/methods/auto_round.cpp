#include "bellows/quant/methods/auto_round.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/round.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

#include "bellows/quant/methods/weight_matrix.h"
#include "bellows/quant/rows.h"

namespace bellows::quant {

namespace {

void check_options(const AutoRoundOptions& options) {
  TORCH_CHECK_VALUE(options.steps >= 0, "auto_round: expected `steps` of at least 0, got ", options.steps, ".");
  TORCH_CHECK_VALUE(options.learning_rate >= 0 && options.learning_rate <= 1,
                    "auto_round: expected a `learning_rate` in [0, 1], got ", options.learning_rate, ".");
}

/// The trained offsets and ranges. All tensors are rows of values with one scale each (rows.h).
class Rounding {
 public:
  Rounding(const at::Tensor& rows, const Scheme& scheme)
      : rows_(rows),
        scheme_(scheme),
        low_(rows.amin(1, /*keepdim=*/true).clamp_max(0)),
        high_(rows.amax(1, /*keepdim=*/true).clamp_min(0)),
        offset_(at::zeros_like(rows)),
        low_share_(at::ones_like(low_)),
        high_share_(at::ones_like(high_)) {}

  /// Quantizes with the current offsets and ranges. Returns the approximation.
  at::Tensor round() {
    parameters = choose_parameters(low_ * low_share_, high_ * high_share_, scheme_);
    unclamped_ = at::round(rows_ * parameters.scale.reciprocal() + offset_) + parameters.zero_point;
    integers = unclamped_.clamp(scheme_.smallest(), scheme_.largest());
    return (integers - parameters.zero_point) * parameters.scale;
  }

  /// Params: gradient – of the loss with respect to the approximation that round() returned
  void step(const at::Tensor& gradient, double rate, bool tune_range) {
    const at::Tensor inside = unclamped_ == integers;
    offset_ = (offset_ - rate * (gradient * inside).sign()).clamp(-0.5, 0.5);
    if (!tune_range) return;
    const at::Tensor centered = integers - parameters.zero_point;
    const at::Tensor slope = centered - rows_ / parameters.scale;  // of an unclamped value over its scale
    if (scheme_.symmetric) {
      const at::Tensor by_scale = (gradient * at::where(inside, slope, centered)).sum(1, true);
      high_share_ = moved(high_share_, by_scale, rate);
      low_share_ = high_share_;
      return;
    }
    // Values inside of the range depend on its width, and clamped values are equal to one end of it.
    const at::Tensor by_width = (gradient * inside * slope).sum(1, true) / (scheme_.largest() - scheme_.smallest());
    const at::Tensor above = unclamped_ > integers, below = unclamped_ < integers;
    high_share_ = moved(high_share_, (by_width + (gradient * above).sum(1, true)) * high_, rate);
    low_share_ = moved(low_share_, ((gradient * below).sum(1, true) - by_width) * low_, rate);
  }

  Parameters parameters;  ///< with one column
  at::Tensor integers;    ///< fp32

 private:
  static at::Tensor moved(const at::Tensor& share, const at::Tensor& gradient, double rate) {
    return (share - rate * gradient.sign()).clamp(0, 1);
  }

  at::Tensor rows_;
  Scheme scheme_;
  at::Tensor low_, high_, offset_, low_share_, high_share_, unclamped_;
};

}  // namespace

QuantizedTensor auto_round(const at::Tensor& weight, const InputStatistics& inputs, const Scheme& scheme,
                           const AutoRoundOptions& options) {
  check_options(options);
  const at::Tensor matrix = weight_matrix(weight, scheme, "auto_round");
  check_inputs(matrix, inputs, "auto_round");
  const at::Tensor moment = inputs.second_moment().to(at::kFloat);
  const double rate = options.learning_rate > 0 ? options.learning_rate : 1.0 / std::max(1, options.steps);
  Rounding rounding(as_rows(matrix, scheme), scheme);
  double smallest = std::numeric_limits<double>::infinity();
  at::Tensor integers;
  Parameters parameters;
  for (int step = 0; step <= options.steps; ++step) {
    const at::Tensor difference = from_rows(rounding.round(), matrix.sizes(), scheme) - matrix;
    const at::Tensor gradient = at::matmul(difference, moment);
    const double error = (gradient * difference).sum(at::kDouble).item<double>();
    if (step == 0 || error < smallest) {
      smallest = error;
      integers = rounding.integers;
      parameters = rounding.parameters;
    }
    if (step == options.steps) break;
    rounding.step(as_rows(gradient, scheme), rate * (1 - static_cast<double>(step) / options.steps),
                  options.tune_range);
  }
  const auto shape = parameter_shape(matrix.sizes(), scheme);
  return {.values = from_rows(integers, matrix.sizes(), scheme).to(scheme.is_signed ? at::kChar : at::kByte),
          .parameters = {.scale = parameters.scale.view(shape), .zero_point = parameters.zero_point.view(shape)},
          .scheme = scheme};
}

}  // namespace bellows::quant
