#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "bellows/nn/loss.h"

/// Cross-entropy of class indices for many classes, such as a vocabulary, without a copy of the logits. Classes are the
/// last dim: [*, C], as language models return them.
///
/// For both functions:
/// Numerics: equals at::cross_entropy_loss, also if all targets are ignored (the mean is NaN). float64 agrees to 1e-12,
///           float32 to 1e-5 of the largest gradient (tests/nn/cross_entropy_test.cpp). bf16 and fp16 logits are summed
///           in fp32, and the loss is fp32.
/// Threads:  safe from several threads
/// Throws:   c10::ValueError if shapes, dtypes, devices or options are invalid, or if a target on the CPU is not a
///           class; in backward, if create_graph is set
namespace bellows::nn {

struct CrossEntropyOptions {
  double label_smoothing = 0;   ///< in [0, 1]: the share of the target that is spread over all classes
  int64_t ignore_index = -100;  ///< targets that are excluded from the loss and from the mean
  Reduction reduction = Reduction::mean;
  bool overwrite_logits = false;  ///< backward overwrites the logits with their gradient; see softmax_cross_entropy()
};

/// Cross-entropy that saves only the logits and one number per row for backward. at::cross_entropy_loss saves a copy of
/// the logits, and for bf16 two copies in fp32.
///
/// With `overwrite_logits`, backward allocates no gradient of the logits but writes it over them. You can read the
/// logits until then. If another operator saved the logits for its backward pass, it detects the change and throws. A
/// second backward pass of this function throws, too. Leaves, views of leaves, and logits that had to be copied are
/// never overwritten.
/// Shapes: logits [*, C]; target [*], int64 → scalar, or the target's shape without reduction
/// Cost:   forward reads the logits twice (once from memory); backward reads and writes them once. The same holds for
///         CUDA with -DBELLOWS_CUDA=ON (untested on a device). Other devices use libtorch's operators, with temporaries
///         of the logits' size (untested).
at::Tensor softmax_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                 const CrossEntropyOptions& options = {});

struct LinearCrossEntropyOptions {
  double label_smoothing = 0;             ///< in [0, 1]: the share of the target that is spread over all classes
  int64_t ignore_index = -100;            ///< targets that are excluded from the loss and from the mean
  Reduction reduction = Reduction::mean;  ///< mean or sum
  int64_t chunk = 0;                      ///< rows per chunk; 0: as many as fit in 32 MiB of logits, but at least 16
  /// Classes per chunk; 0: all. With fewer, the logits are computed twice: once for the sums and once for the
  /// gradients.
  int64_t vocabulary_chunk = 0;
};

/// The number of rows per chunk if `chunk` is 0.
/// Params: score_bytes – bytes of one logit
int64_t automatic_chunk(int64_t classes, int64_t score_bytes);

/// Cross-entropy of linear(hidden, weight, bias) without materializing the logits. The logits of one chunk of rows are
/// computed and converted in place to gradients of hidden, weight and bias before the next chunk.
///
/// Forward computes the gradients that are needed. The first backward pass scales and returns them; a second one
/// throws. Under no_grad, only the loss is computed.
/// Shapes:   hidden [*, H]; weight [C, H]; bias [C] or undefined; target [*], int64 → scalar
/// Numerics: matrix multiplications in the dtype of hidden and weight, or in autocast's. For bf16 and fp16, gradients
///           of weight and bias are summed over chunks in fp32.
/// Cost:     memory for one chunk of logits and the three gradients; the time of the three matrix multiplications of
///           forward and backward, and a fourth with vocabulary_chunk. Untested on devices other than the CPU.
/// Ref:      arXiv:2411.09009 (cut cross-entropy); arXiv:2410.10989 (Liger, fused linear cross-entropy)
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                                const at::Tensor& target, const LinearCrossEntropyOptions& options = {});

}  // namespace bellows::nn
