#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "bellows/comm/group.h"
#include "bellows/nn/loss.h"

namespace bellows::parallel {

struct TensorCrossEntropyOptions {
  double label_smoothing = 0;   ///< share of the target that is spread over all classes, in [0, 1]
  int64_t ignore_index = -100;  ///< targets with this value are excluded from the loss and from the mean
  nn::Reduction reduction = nn::Reduction::mean;
};

/// Cross-entropy of logits whose classes are divided among the ranks, as the output layer of a tensor-parallel model
/// returns them. The logits are never gathered. Rank r of n has the classes from classes · r / n to
/// classes · (r + 1) / n - 1, rounded down. All ranks must pass the same targets, and get the same loss. Collective.
/// Params:   classes – number of classes on all ranks together
/// Shapes:   logits [*, classes of this rank]; target [*], int64 → scalar, or the target's shape without reduction
/// Numerics: computed in fp32, or in fp64 for fp64 logits; the loss has this dtype. In fp64, loss and gradients match
///           at::cross_entropy_loss to 1e-12, and in fp32 to 1e-5 (tests/parallel/tensor/loss_test.cpp)
/// Cost:     all-reduces three numbers per row, or four with label smoothing. Backward sends nothing, and allocates one
///           tensor of the size of this rank's logits in fp32 or fp64
/// Throws:   c10::ValueError if shapes, dtypes or options are invalid, or if a target on the CPU is not a valid class
///           index. Second derivatives throw
/// Ref:      arXiv:1909.08053, section 3; torch.distributed.tensor.parallel.loss_parallel
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t classes, const comm::Group& group,
                         const TensorCrossEntropyOptions& options = {});

}  // namespace bellows::parallel
