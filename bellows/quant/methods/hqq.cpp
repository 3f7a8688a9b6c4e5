#include "bellows/quant/methods/hqq.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/round.h>
#include <ATen/ops/where.h>

#include <limits>

#include "bellows/quant/methods/weight_matrix.h"
#include "bellows/quant/rows.h"

namespace bellows::quant {

namespace {

void check_options(const HqqOptions& options) {
  TORCH_CHECK_VALUE(options.norm > 0 && options.norm <= 1, "hqq: expected a `norm` in (0, 1], got ", options.norm, ".");
  TORCH_CHECK_VALUE(options.beta > 0 && options.kappa >= 1,
                    "hqq: expected a positive `beta` and a `kappa` of at least ", "1, got ", options.beta, " and ",
                    options.kappa, ".");
  TORCH_CHECK_VALUE(options.iterations >= 1, "hqq: expected at least one of `iterations`, got ", options.iterations,
                    ".");
}

/// The sparse part of the errors: the proximal operator of the norm.
at::Tensor shrink(const at::Tensor& errors, double beta, double norm) {
  const at::Tensor magnitudes = errors.abs();
  return errors.sign() * (magnitudes - magnitudes.pow(norm - 1) / beta).clamp_min(0);
}

/// Scales and zero points of rows, with one column.
struct RowParameters {
  at::Tensor scale, zero;

  at::Tensor integers(const at::Tensor& rows, const Scheme& scheme) const {
    return (at::round(rows * scale.reciprocal()) + zero).clamp(scheme.smallest(), scheme.largest());
  }

  /// Fits the parameters, so that the integers approximate the target.
  void fit(const at::Tensor& integers, const at::Tensor& target, const Scheme& scheme) {
    const at::Tensor centered = integers - zero;
    const at::Tensor fitted = (centered * target).sum(1, /*keepdim=*/true) / centered.square().sum(1, true);
    // A row whose integers are all 0 has no fitted scale.
    scale = at::where(fitted > std::numeric_limits<float>::epsilon(), fitted, scale);
    if (scheme.symmetric) return;
    zero = at::round((integers - target / scale).mean(1, true)).clamp(scheme.smallest(), scheme.largest());
  }
};

}  // namespace

QuantizedTensor hqq(const at::Tensor& weight, const Scheme& scheme, const HqqOptions& options) {
  check_options(options);
  const at::Tensor matrix = weight_matrix(weight, scheme, "hqq");
  const Parameters initial = choose_parameters(matrix, scheme);
  const at::Tensor rows = as_rows(matrix, scheme), step = initial.scale.reshape({-1, 1});
  RowParameters now{.scale = step, .zero = initial.zero_point.reshape({-1, 1}).to(at::kFloat)}, best = now;
  at::Tensor smallest = at::full_like(step, std::numeric_limits<double>::infinity());
  double beta = options.beta;
  for (int i = 0; i < options.iterations; ++i, beta *= options.kappa) {
    const at::Tensor integers = now.integers(rows, scheme);
    const at::Tensor errors = rows - (integers - now.zero) * now.scale;
    const at::Tensor error = errors.abs().mean(1, /*keepdim=*/true), better = error < smallest;
    smallest = at::where(better, error, smallest);
    best = {.scale = at::where(better, now.scale, best.scale), .zero = at::where(better, now.zero, best.zero)};
    now.fit(integers, rows - shrink(errors / step, beta, options.norm) * step, scheme);
  }
  const Parameters chosen{.scale = best.scale.view_as(initial.scale),
                          .zero_point = best.zero.to(at::kInt).view_as(initial.zero_point)};
  return quantize(matrix, chosen, scheme);
}

}  // namespace bellows::quant
