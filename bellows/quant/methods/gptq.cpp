#include "bellows/quant/methods/gptq.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cholesky_inverse.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/round.h>

#include <algorithm>
#include <vector>

#include "bellows/quant/methods/weight_matrix.h"
#include "bellows/quant/rows.h"

namespace bellows::quant {

namespace {

void check_options(const GptqOptions& options) {
  TORCH_CHECK_VALUE(options.block_size >= 1, "gptq: expected a `block_size` of at least 1, got ", options.block_size,
                    ".");
  TORCH_CHECK_VALUE(options.damping >= 0 && options.damping <= 1, "gptq: expected a `damping` in [0, 1], got ",
                    options.damping, ".");
}

at::Tensor factor(const at::Tensor& matrix, bool upper, double damping) {
  const auto [triangle, info] = at::linalg_cholesky_ex(matrix, upper);
  TORCH_CHECK_VALUE(info.item<int>() == 0, "gptq: the second moment of the inputs is not positive definite with the ",
                    "`damping` ", damping, ". Use a larger `damping`, or more calibration data.");
  return triangle;
}

/// The upper Cholesky factor of the inverse of the damped second moment.
at::Tensor inverse_factor(const at::Tensor& moment, double damping) {
  const at::Tensor damped = moment.clone();
  damped.diagonal().add_(damping * moment.diagonal().mean().item<double>());
  const at::Tensor inverse = at::cholesky_inverse(factor(damped, /*upper=*/false, damping));
  return factor(inverse, /*upper=*/true, damping).to(at::kFloat).contiguous();
}

/// The columns of a weight in the order in which they are quantized.
class Columns {
 public:
  Columns(const at::Tensor& weight, const Scheme& scheme, const GptqOptions& options)
      : weight_(weight),
        scheme_(scheme),
        rows_(weight.size(0)),
        columns_(weight.size(1)),
        width_(columns_per_scale(weight, scheme)),
        static_(options.activation_order || scheme.granularity != Granularity::group) {
    order_ = at::arange(columns_, at::kLong);
    parameters_ = choose_parameters(weight, scheme);
    const std::vector<int64_t> grid{rows_, columns_ / width_};
    const auto expanded = [&](const at::Tensor& one) {
      return (one.dim() == 0 ? one.expand(grid) : one.reshape(grid)).contiguous();
    };
    scale_ = expanded(parameters_.scale);
    zero_point_ = expanded(parameters_.zero_point);
  }

  /// Sorts the columns, and the second moment, by the size of the inputs.
  void sort(at::Tensor& moment) {
    order_ = at::argsort(moment.diagonal(), /*stable=*/true, /*dim=*/0, /*descending=*/true);
    weight_ = weight_.index_select(1, order_).contiguous();
    moment = moment.index_select(0, order_).index_select(1, order_);
  }

  /// Quantizes all columns.
  at::Tensor quantize(const at::Tensor& inverse, int64_t block_size) {
    values_ = at::empty({columns_, rows_}, scheme_.is_signed ? at::kChar : at::kByte);
    for (int64_t begin = 0; begin < columns_; begin += block_size) {
      const int64_t end = std::min(begin + block_size, columns_);
      if (!static_) choose_scales(begin, end);
      const at::Tensor errors = quantize_block(inverse, begin, end);
      if (end == columns_) break;
      weight_.slice(1, end).sub_(at::matmul(errors.t(), inverse.slice(0, begin, end).slice(1, end)));
    }
    return values_.index_select(0, at::argsort(order_)).t().contiguous();
  }

  Parameters parameters() const {
    if (static_) return parameters_;
    return {.scale = scale_, .zero_point = zero_point_};
  }

 private:
  /// Chooses the scales of the groups that begin in [begin, end).
  void choose_scales(int64_t begin, int64_t end) {
    const Scheme row{.bits = scheme_.bits,
                     .is_signed = scheme_.is_signed,
                     .symmetric = scheme_.symmetric,
                     .narrow_range = scheme_.narrow_range,
                     .granularity = Granularity::channel};
    for (int64_t group = (begin + width_ - 1) / width_; group * width_ < end; ++group) {
      const Parameters chosen = choose_parameters(weight_.slice(1, group * width_, (group + 1) * width_), row);
      scale_.select(1, group).copy_(chosen.scale);
      zero_point_.select(1, group).copy_(chosen.zero_point);
    }
  }

  /// Returns the errors of the columns [count, rows], each divided by its diagonal element of the inverse.
  at::Tensor quantize_block(const at::Tensor& inverse, int64_t begin, int64_t end) {
    const at::Tensor corner = inverse.slice(0, begin, end).slice(1, begin, end);
    at::Tensor block = weight_.slice(1, begin, end).t().contiguous(), errors = at::empty_like(block);
    for (int64_t i = 0; i < end - begin; ++i) {
      const int64_t group = order_.const_data_ptr<int64_t>()[begin + i] / width_;
      const at::Tensor column = block[i], scale = scale_.select(1, group), zero = zero_point_.select(1, group);
      const at::Tensor integers = (at::round(column / scale) + zero).clamp(scheme_.smallest(), scheme_.largest());
      values_[begin + i].copy_(integers);
      errors[i].copy_((column - (integers - zero) * scale) / corner[i][i]);
      block.slice(0, i).addr_(corner[i].slice(0, i), errors[i], /*beta=*/1, /*alpha=*/-1);
    }
    return errors;
  }

  at::Tensor weight_, order_, scale_, zero_point_;
  at::Tensor values_;  ///< [columns, rows]
  Parameters parameters_;
  Scheme scheme_;
  int64_t rows_, columns_, width_;
  bool static_;  ///< whether all scales come from the original weight
};

}  // namespace

QuantizedTensor gptq(const at::Tensor& weight, const InputStatistics& inputs, const Scheme& scheme,
                     const GptqOptions& options) {
  check_options(options);
  at::Tensor matrix = weight_matrix(weight, scheme, "gptq").clone();
  check_inputs(matrix, inputs, "gptq");
  at::Tensor moment = inputs.second_moment();
  const at::Tensor dead = moment.diagonal() == 0;
  moment.diagonal().masked_fill_(dead, 1);
  matrix.masked_fill_(dead.unsqueeze(0), 0);

  Columns columns(matrix, scheme, options);
  if (options.activation_order) columns.sort(moment);
  const at::Tensor values = columns.quantize(inverse_factor(moment, options.damping), options.block_size);
  return {.values = values, .parameters = columns.parameters(), .scheme = scheme};
}

}  // namespace bellows::quant
