#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/nn/loss.h"

/// What the two cross-entropies share.
namespace bellows::nn::loss {

/// The dtype that rows of scores are summed in.
inline at::ScalarType sum_type(const at::Tensor& scores) {
  return scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// [4, rows], as softmax_statistics_op() starts.
at::Tensor fresh_statistics(int64_t rows, const at::Tensor& like);

struct RowLosses {
  at::Tensor losses, log_sum;  ///< [N]
};
/// Params: kept – [N] bool, false: ignored
RowLosses row_losses(const at::Tensor& state, const at::Tensor& kept, double smoothing, int64_t classes);

at::Tensor reduced_losses(const at::Tensor& losses, const at::Tensor& kept, Reduction reduction);

/// How much of the reduced loss a row's is, [N] in the dtype of `losses`: 0 where it is ignored.
at::Tensor row_scales(const at::Tensor& kept, const at::Tensor& losses, Reduction reduction);

/// Throws: c10::ValueError – on a CPU: a kept target that is no class
void check_classes(const char* function, const at::Tensor& target, const at::Tensor& kept, int64_t classes);
/// Throws: c10::ValueError – called in a backward pass that is recorded
void refuse_second_order(const char* function);

}  // namespace bellows::nn::loss
