#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "bellows/nn/loss.h"

/// Cross-entropy for targets that are class indices, optimized for many classes, such as the tokens of a vocabulary. It
/// does not copy the logits. The classes are the last dim of the logits, [*, C], as in the output of language models.
///
/// For both functions:
/// Numerics: results in float64 agree with at::cross_entropy_loss to 1e-12, and results in float32 to 1e-5 of the
///           largest gradient (tests/nn/cross_entropy_test.cpp). If all targets are ignored, the mean is NaN, as in
///           libtorch. Logits in bf16 and fp16 are summed in fp32, and the loss is in fp32.
/// Threads:  thread-safe
/// Throws:   c10::ValueError if shapes, dtypes, devices or options are invalid, or if a target on the CPU is not a
///           valid class index. Backward throws if create_graph is set
namespace bellows::nn {

struct CrossEntropyOptions {
  double label_smoothing = 0;   ///< share of the target that is spread over all classes, in [0, 1]
  int64_t ignore_index = -100;  ///< targets with this value are excluded from the loss and from the mean
  Reduction reduction = Reduction::mean;
  bool overwrite_logits = false;  ///< backward overwrites the logits with their gradient; see softmax_cross_entropy()
};

/// Cross-entropy that saves only the logits and one number per row for backward. In contrast, at::cross_entropy_loss
/// saves a copy of the logits. For bf16 logits, it saves two copies in fp32.
///
/// With `overwrite_logits`, backward writes the gradient over the logits instead of allocating a tensor for it. You can
/// read the logits until backward runs. If another operator saved the logits for its backward pass, that operator
/// detects the change and throws. A second backward pass of this function throws, too. Leaves, views of leaves, and
/// logits that had to be copied are never overwritten.
/// Shapes: logits [*, C]; target [*], int64 → scalar, or the target's shape without reduction
/// Cost:   forward reads the logits twice (the second time from the cache). Backward reads and writes them once. The
///         same holds for CUDA with -DBELLOWS_CUDA=ON (untested on a device). Other devices use libtorch's operators,
///         with temporaries of the logits' size (untested).
at::Tensor softmax_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                 const CrossEntropyOptions& options = {});

struct LinearCrossEntropyOptions {
  double label_smoothing = 0;             ///< share of the target that is spread over all classes, in [0, 1]
  int64_t ignore_index = -100;            ///< targets with this value are excluded from the loss and from the mean
  Reduction reduction = Reduction::mean;  ///< mean or sum
  int64_t chunk = 0;                      ///< rows per chunk; 0: as many as fit in 32 MiB of logits, but at least 16
  /// Classes per chunk; 0: all classes. If there are several chunks, the logits are computed twice: once for the sums
  /// of the softmax and once for the gradients.
  int64_t vocabulary_chunk = 0;
};

/// Returns the number of rows per chunk that is used if `chunk` is 0.
/// Params: score_bytes – size of one logit in bytes
int64_t automatic_chunk(int64_t classes, int64_t score_bytes);

/// Cross-entropy of linear(hidden, weight, bias) without materializing the logits. It processes one chunk of rows after
/// another. For each chunk, it computes the logits, converts them in place to their gradients, and uses these to
/// compute the gradients of hidden, weight and bias.
///
/// Forward computes the required gradients. The first backward pass scales and returns them. A second backward pass
/// throws. Under no_grad, forward computes only the loss.
/// Shapes:   hidden [*, H]; weight [C, H]; bias [C] or undefined; target [*], int64 → scalar
/// Numerics: matrix multiplications run in the dtype of hidden and weight, or in autocast's dtype. For bf16 and fp16,
///           gradients of weight and bias are summed over chunks in fp32.
/// Cost:     memory for one chunk of logits and the three gradients. Forward and backward together take the time of
///           three matrix multiplications, or of four with vocabulary_chunk. The function is untested on devices other
///           than the CPU.
/// Ref:      arXiv:2411.09009 (cut cross-entropy); arXiv:2410.10989 (Liger, fused linear cross-entropy)
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                                const at::Tensor& target, const LinearCrossEntropyOptions& options = {});

}  // namespace bellows::nn
