#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "bellows/nn/loss.h"

/// Cross-entropy of class indices for many classes, such as the words of a vocabulary, without copies of the scores.
/// Classes are the last dim here: [*, C], as a language model gives them.
///
/// For both –
/// Numerics: as at::cross_entropy_loss, also where all targets are ignored (the mean is NaN); float64 to 1e-12, float32 to 1e-5 of
///           the largest gradient (tests/nn/cross_entropy_test.cpp). bf16 and fp16 scores are summed in fp32, and the loss is fp32.
/// Threads:  safe from several threads
/// Throws:   c10::ValueError – shapes, dtypes, devices or options that do not fit; on a CPU: a target that is no class; in
///           backward: a gradient of the gradient is asked for
namespace bellows::nn {

struct CrossEntropyOptions {
  double label_smoothing = 0;   ///< in [0, 1]: the share of the target that is spread over the classes
  int64_t ignore_index = -100;  ///< targets that count neither in the loss nor in the mean
  Reduction reduction = Reduction::mean;
  bool overwrite_logits = false;  ///< backward writes the gradient over the logits; see softmax_cross_entropy()
};

/// Cross-entropy that keeps the logits as they came and one number a row for backward; at::cross_entropy_loss keeps a copy
/// of them, for bf16 two in fp32.
///
/// With `overwrite_logits` backward does not take memory for their gradient, either: it writes it over them. They stay
/// readable until then. What else saved them for its own backward pass finds that out and throws, and so does a second backward
/// pass of this one. Leaves, views of
/// leaves, and logits that had to be copied are never written over.
/// Shapes:   logits [*, C]; target [*], int64 → scalar, or as target without reduction
/// Cost:     forward reads the logits twice (once from memory); backward reads and writes them once. On CUDA
///           with -DBELLOWS_CUDA=ON the same (untested on a device); on other devices composed of libtorch's operators, with
///           temporaries of the logits' size (untested).
at::Tensor softmax_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                 const CrossEntropyOptions& options = {});

struct LinearCrossEntropyOptions {
  double label_smoothing = 0;             ///< in [0, 1]: the share of the target that is spread over the classes
  int64_t ignore_index = -100;            ///< targets that count neither in the loss nor in the mean
  Reduction reduction = Reduction::mean;  ///< mean or sum
  int64_t chunk = 0;                      ///< rows at a time; 0: as many as have 32 MiB of scores, at least 16
  int64_t vocabulary_chunk = 0;  ///< classes at a time; 0: all. Fewer: scores are computed twice, sums before gradients
};

/// Rows at a time where `chunk` is 0. Params: score_bytes – of one score
int64_t automatic_chunk(int64_t classes, int64_t score_bytes);

/// Cross-entropy of linear(hidden, weight, bias) whose scores never are there all at once: they are computed for a chunk of
/// rows, and turned into gradients of hidden, weight and bias in place, before the next.
///
/// Gradients are computed in forward, where they are needed, and handed over by the first backward pass, scaled by what it
/// brings; a second one throws. Under no_grad nothing but the loss is computed.
/// Shapes:   hidden [*, H]; weight [C, H]; bias [C] or undefined; target [*], int64 → scalar
/// Numerics: matrices in the dtype of hidden and weight, or autocast's; gradients of weight and bias are summed over chunks in
///           fp32 for bf16 and fp16
/// Cost:     memory: one chunk of scores and the three gradients. Time: the three products of forward and backward, and a fourth
///           with vocabulary_chunk. On other devices than the CPU untested.
/// Ref:      arXiv:2411.09009 (cut cross-entropy); arXiv:2410.10989 (Liger, fused linear cross-entropy)
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                                const at::Tensor& target, const LinearCrossEntropyOptions& options = {});

}  // namespace bellows::nn
