#include "bellows/quant/methods/awq.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/round.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <limits>
#include <vector>

#include "bellows/quant/methods/weight_matrix.h"
#include "bellows/quant/rows.h"

namespace bellows::quant {

namespace {

void check_options(const AwqOptions& options) {
  TORCH_CHECK_VALUE(options.grid >= 1, "awq: expected a `grid` of at least 1, got ", options.grid, ".");
  TORCH_CHECK_VALUE(options.max_shrink >= 0 && options.max_shrink < 1, "awq: expected a `max_shrink` in [0, 1), got ",
                    options.max_shrink, ".");
}

/// Like quantize(), but divides by the scale as the original does. The ends of a range that is clipped to [−t, t] lie in
/// the middle between two integers. The multiplication by a reciprocal would round some of them to the other integer.
QuantizedTensor quantize_by_division(const at::Tensor& matrix, const Scheme& scheme) {
  const Parameters parameters = choose_parameters(matrix, scheme);
  const at::Tensor rounded = at::round(as_rows(matrix, scheme) / parameters.scale.reshape({-1, 1}));
  const at::Tensor integers =
      (rounded + parameters.zero_point.reshape({-1, 1})).clamp(scheme.smallest(), scheme.largest());
  return {.values = from_rows(integers.to(scheme.is_signed ? at::kChar : at::kByte), matrix.sizes(), scheme),
          .parameters = parameters,
          .scheme = scheme};
}

/// The blocks on the diagonal of the second moment, one for each group of inputs: [groups, width, width].
at::Tensor diagonal_blocks(const at::Tensor& moment, int64_t width) {
  std::vector<at::Tensor> blocks;
  for (int64_t begin = 0; begin < moment.size(0); begin += width)
    blocks.push_back(moment.slice(0, begin, begin + width).slice(1, begin, begin + width));
  return at::stack(blocks);
}

}  // namespace

at::Tensor awq_scales(const at::Tensor& weight, const InputStatistics& inputs, const Scheme& scheme,
                      const AwqOptions& options) {
  check_options(options);
  const at::Tensor matrix = weight_matrix(weight, scheme, "awq");
  check_inputs(matrix, inputs, "awq");
  const at::Tensor magnitudes = inputs.mean_abs();
  const at::Tensor moment = inputs.second_moment().to(at::kFloat);
  double smallest = std::numeric_limits<double>::infinity();
  at::Tensor best;
  for (int i = 0; i < options.grid; ++i) {
    at::Tensor scales = magnitudes.pow(static_cast<double>(i) / options.grid).clamp_min(1e-4);
    scales = scales / (scales.max() * scales.min()).sqrt();
    const at::Tensor difference = matrix - quantize_by_division(matrix * scales, scheme).dequantize() / scales;
    const double error = (difference.matmul(moment) * difference).sum(at::kDouble).item<double>();
    if (error >= smallest) continue;
    smallest = error;
    best = scales;
  }
  TORCH_CHECK_VALUE(best.defined(),
                    "awq: the error of the outputs is not finite. Check the scale of the inputs, whose ",
                    "largest magnitude is ", inputs.max_abs().max().item<float>(), ".");
  return best;
}

at::Tensor awq_clip(const at::Tensor& weight, const InputStatistics& inputs, const Scheme& scheme,
                    const AwqOptions& options) {
  check_options(options);
  const at::Tensor matrix = weight_matrix(weight, scheme, "awq");
  check_inputs(matrix, inputs, "awq");
  TORCH_CHECK_VALUE(scheme.granularity != Granularity::tensor, "awq: clipping needs a scale per output channel or per ",
                    "group, got ", scheme.to_text(), ". Set `max_shrink` to 0 for this scheme.");
  const int64_t out = matrix.size(0), width = columns_per_scale(matrix, scheme);
  const at::Tensor blocks = diagonal_blocks(inputs.second_moment(), width);
  const at::Tensor parts = matrix.view({out, -1, width});
  const at::Tensor largest = parts.abs().amax(2, /*keepdim=*/true);
  at::Tensor best = largest, smallest = at::full_like(largest, std::numeric_limits<double>::infinity(), at::kDouble);
  for (int i = 0; i == 0 || i < static_cast<int>(options.max_shrink * options.grid); ++i) {
    const at::Tensor limit = largest * (1 - static_cast<double>(i) / options.grid);
    const at::Tensor clipped = parts.clamp(-limit, limit).view_as(matrix);
    // Errors of neighboring limits are close to each other, and inputs are correlated: fp32 loses too many digits.
    const at::Tensor difference =
        (quantize_by_division(clipped, scheme).dequantize().view_as(parts) - parts).transpose(0, 1).to(at::kDouble);
    const at::Tensor error = (at::bmm(difference, blocks) * difference).sum(2, /*keepdim=*/true).transpose(0, 1);
    const at::Tensor better = error < smallest;
    smallest = at::where(better, error, smallest);
    best = at::where(better, limit, best);
  }
  return parts.clamp(-best, best).view_as(matrix);
}

AwqWeight awq(const at::Tensor& weight, const InputStatistics& inputs, const Scheme& scheme,
              const AwqOptions& options) {
  const at::Tensor scales = awq_scales(weight, inputs, scheme, options);
  at::Tensor scaled = weight.detach().to(at::kCPU, at::kFloat) * scales;
  if (options.max_shrink > 0) scaled = awq_clip(scaled, inputs.divided_by(scales), scheme, options);
  return {.weight = quantize_by_division(scaled, scheme), .scales = scales};
}

}  // namespace bellows::quant
