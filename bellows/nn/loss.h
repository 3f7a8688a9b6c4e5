#pragma once

#include <ATen/core/Tensor.h>

/// Losses that libtorch's C++ API lacks, or lacks label smoothing or class weights for. at::cross_entropy_loss has both
/// for class indices and stays what to use there.
///
/// For all of them –
/// Params:   label_smoothing – in [0, 1]: the share of the target that is spread over the classes
/// Numerics: bf16 and fp16 logits are cast to fp32 first and the loss is fp32, as autocast does with libtorch's losses.
///           Values and gradients against PyTorch, torchvision and timm in float64 to 1e-10 (tests/nn/loss_test.cpp).
/// Cost:     composed of libtorch's operators: a few temporaries of the logits' size; no synchronization
/// Threads:  safe from several threads
/// Throws:   c10::ValueError – shapes, dtypes, devices or options that do not fit, with what was expected
namespace bellows::nn {

/// What becomes of the values of a loss: their (weighted) mean, their sum, or nothing.
enum class Reduction { mean, sum, none };

struct BinaryCrossEntropyOptions {
  at::Tensor weight{};         ///< factor of each value, broadcast to the logits; undefined: 1
  at::Tensor pos_weight{};     ///< factor of the positive part, broadcast to the logits: [C] is one a class
  double label_smoothing = 0;  ///< of 0/1 targets t: t·(1−s) + s/2; of class indices: 1−s+s/C and s/C
  Reduction reduction = Reduction::mean;
};

/// Binary cross-entropy of each logit by itself: for multi-label targets, or with class indices for "one against all".
/// Shapes:   logits [N, C, …] or any; target as logits, values in [0, 1] – or class indices [N, …], int64
///           → scalar, or as logits without reduction
/// Ref:      torch.nn.functional.binary_cross_entropy_with_logits; Keras BinaryCrossentropy(label_smoothing) for 0/1
///           targets; timm BinaryCrossEntropy for class indices
at::Tensor binary_cross_entropy_with_logits(const at::Tensor& logits, const at::Tensor& target,
                                            const BinaryCrossEntropyOptions& options = {});

struct NLLLossOptions {
  at::Tensor weight{};  ///< [C], factor of each class; undefined: 1
  double label_smoothing = 0;
  int64_t ignore_index = -100;            ///< targets that count neither in the loss nor in the mean
  Reduction reduction = Reduction::mean;  ///< mean: over the weights of the targets
};

/// Negative log-likelihood of log-probabilities, with label smoothing: cross-entropy for models that end in log_softmax.
/// Shapes:   log_probs [C] or [N, C, …]; target [] or [N, …], int64 → scalar, or as target without reduction
/// Ref:      torch.nn.functional.nll_loss, cross_entropy(label_smoothing)
at::Tensor nll_loss(const at::Tensor& log_probs, const at::Tensor& target, const NLLLossOptions& options = {});

struct SoftTargetOptions {
  at::Tensor weight{};  ///< [C], factor of each class; undefined: 1
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;  ///< mean: over samples and positions
};

/// Cross-entropy with probabilities as targets, as mixup, CutMix and distillation make them.
/// Shapes:   logits [C] or [N, C, …]; target as logits, probabilities over C → scalar, or logits without C
/// Ref:      timm SoftTargetCrossEntropy; torch.nn.functional.cross_entropy with probabilities
at::Tensor soft_target_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                     const SoftTargetOptions& options = {});

/// Kullback–Leibler divergence of softmax(logits) from the targets: soft_target_cross_entropy less the target's own
/// entropy, so that 0 is a perfect answer. Shapes and options as there; the gradient is the same.
/// Ref:      torch.nn.functional.kl_div(log_softmax(logits), target, reduction="batchmean") for [N, C]
at::Tensor soft_target_kl_div(const at::Tensor& logits, const at::Tensor& target,
                              const SoftTargetOptions& options = {});

struct FocalLossOptions {
  double gamma = 2;     ///< how much easy examples count less, at least 0; 0: cross-entropy
  at::Tensor weight{};  ///< [C], factor of each class (the paper's alpha); undefined: 1
  double label_smoothing = 0;
  int64_t ignore_index = -100;            ///< targets that count neither in the loss nor in the mean
  Reduction reduction = Reduction::mean;  ///< mean: over the weights of the targets, as cross-entropy
};

/// Cross-entropy over classes whose terms are scaled by (1 − p)^gamma.
/// Shapes:   logits [C] or [N, C, …]; target [] or [N, …], int64 → scalar, or as target without reduction
/// Ref:      arXiv:1708.02002
at::Tensor focal_loss(const at::Tensor& logits, const at::Tensor& target, const FocalLossOptions& options = {});

struct SigmoidFocalLossOptions {
  double alpha = 0.25;         ///< weight of positives, in [0, 1]; negatives get 1 − alpha; −1: none
  double gamma = 2;            ///< how much easy examples count less, at least 0
  at::Tensor weight{};         ///< factor of each value, broadcast to the logits; undefined: 1
  double label_smoothing = 0;  ///< t·(1−s) + s/2
  Reduction reduction = Reduction::none;
};

/// Focal loss of each logit by itself, for detection and multi-label targets.
/// Shapes:   logits any; target as logits, values in [0, 1] → as logits, or scalar with a reduction
/// Ref:      torchvision.ops.sigmoid_focal_loss; arXiv:1708.02002
at::Tensor sigmoid_focal_loss(const at::Tensor& logits, const at::Tensor& target,
                              const SigmoidFocalLossOptions& options = {});

struct AsymmetricLossOptions {
  double gamma_neg = 4;        ///< focusing of negatives, at least 0
  double gamma_pos = 1;        ///< focusing of positives, at least 0
  double clip = 0.05;          ///< probability up to which a negative costs nothing, in [0, 1)
  double eps = 1e-8;           ///< floor of a probability under the logarithm
  at::Tensor weight{};         ///< factor of each value, broadcast to the logits; undefined: 1
  double label_smoothing = 0;  ///< t·(1−s) + s/2
  Reduction reduction = Reduction::sum;
};

/// Multi-label loss for many negatives a positive: focuses negatives more and drops the easy ones.
/// Shapes:   logits any; target as logits, values in [0, 1] → scalar, or as logits without reduction
/// Ref:      timm AsymmetricLossMultiLabel; arXiv:2009.14119
at::Tensor asymmetric_loss(const at::Tensor& logits, const at::Tensor& target,
                           const AsymmetricLossOptions& options = {});

/// Class indices as smoothed probabilities: 1 − s + s/C at the index, s/C elsewhere.
/// Params:   dtype – of the result, floating-point
/// Shapes:   labels [N, …], int64 in [0, C) → [N, C, …]
/// Ref:      timm.data.mixup.one_hot; torch.nn.functional.one_hot
at::Tensor smooth_one_hot(const at::Tensor& labels, int64_t num_classes, double label_smoothing = 0,
                          at::ScalarType dtype = at::kFloat);

}  // namespace bellows::nn
