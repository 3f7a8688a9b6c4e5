#pragma once

#include <ATen/core/Tensor.h>

/// Losses that libtorch's C++ API lacks, or offers only without label smoothing or class weights. For class indices,
/// use at::cross_entropy_loss, which supports label smoothing and class weights.
///
/// For all functions:
/// Params:   label_smoothing – share of the target that is spread over all classes, in [0, 1]
/// Numerics: bf16 and fp16 logits are first cast to fp32. The loss is in fp32, like libtorch's losses under autocast.
///           Values and gradients agree with PyTorch, torchvision and timm to 1e-10 in float64
///           (tests/nn/loss_test.cpp).
/// Cost:     the losses are composed of libtorch's operators, with a few temporaries of the logits' size and no host
///           synchronization
/// Threads:  thread-safe
/// Throws:   c10::ValueError if shapes, dtypes, devices or options are invalid (the message states what was expected)
namespace bellows::nn {

/// How the values of a loss are reduced: to the (weighted) mean, to the sum, or not at all.
enum class Reduction { mean, sum, none };

struct BinaryCrossEntropyOptions {
  at::Tensor weight{};         ///< factor of each value, broadcast to the logits; undefined: 1
  at::Tensor pos_weight{};     ///< factor of the positive part, broadcast to the logits: [C] for one factor per class
  double label_smoothing = 0;  ///< 0/1 targets t become t·(1−s) + s/2; class indices become 1−s+s/C and s/C
  Reduction reduction = Reduction::mean;
};

/// Binary cross-entropy of each logit, for multi-label targets or class indices. Class indices are converted to "one
/// versus rest" targets.
/// Shapes: logits of any shape; target of the same shape with values in [0, 1] → scalar, or the logits' shape without
///         reduction. Class indices are int64 [N, …] for logits [N, C, …]
/// Ref:    torch.nn.functional.binary_cross_entropy_with_logits; Keras BinaryCrossentropy(label_smoothing) for 0/1
///         targets; timm BinaryCrossEntropy for class indices
at::Tensor binary_cross_entropy_with_logits(const at::Tensor& logits, const at::Tensor& target,
                                            const BinaryCrossEntropyOptions& options = {});

struct NLLLossOptions {
  at::Tensor weight{};  ///< [C], factor of each class; undefined: 1
  double label_smoothing = 0;
  int64_t ignore_index = -100;            ///< targets with this value are excluded from the loss and from the mean
  Reduction reduction = Reduction::mean;  ///< mean: weighted by the weights of the targets
};

/// Negative log-likelihood of log-probabilities with label smoothing. It is the cross-entropy for models that end in
/// log_softmax.
/// Shapes: log_probs [C] or [N, C, …]; target [] or [N, …], int64 → scalar, or the target's shape without reduction
/// Ref:    torch.nn.functional.nll_loss, cross_entropy(label_smoothing)
at::Tensor nll_loss(const at::Tensor& log_probs, const at::Tensor& target, const NLLLossOptions& options = {});

struct SoftTargetOptions {
  at::Tensor weight{};  ///< [C], factor of each class; undefined: 1
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;  ///< mean: over samples and positions
};

/// Cross-entropy with probabilities as targets, for example from mixup, CutMix or distillation.
/// Shapes: logits [C] or [N, C, …]; target of the same shape with probabilities over C → scalar; or, without
///         reduction, [] or [N, …]
/// Ref:    timm SoftTargetCrossEntropy; torch.nn.functional.cross_entropy with probabilities
at::Tensor soft_target_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                     const SoftTargetOptions& options = {});

/// Kullback–Leibler divergence of softmax(logits) from the targets. It is soft_target_cross_entropy() minus the entropy
/// of the targets, so the minimum is 0. Shapes, options and gradients are the same as for soft_target_cross_entropy().
/// Ref: torch.nn.functional.kl_div(log_softmax(logits), target, reduction="batchmean") for [N, C]
at::Tensor soft_target_kl_div(const at::Tensor& logits, const at::Tensor& target,
                              const SoftTargetOptions& options = {});

struct FocalLossOptions {
  double gamma = 2;     ///< how strongly easy examples are down-weighted, at least 0; 0: cross-entropy
  at::Tensor weight{};  ///< [C], factor of each class (the paper's alpha); undefined: 1
  double label_smoothing = 0;
  int64_t ignore_index = -100;            ///< targets with this value are excluded from the loss and from the mean
  Reduction reduction = Reduction::mean;  ///< mean: weighted by the weights of the targets, as in cross-entropy
};

/// Cross-entropy over classes with each term scaled by (1 − p)^gamma, where p is the predicted probability.
/// Shapes: logits [C] or [N, C, …]; target [] or [N, …], int64 → scalar, or the target's shape without reduction
/// Ref:    arXiv:1708.02002
at::Tensor focal_loss(const at::Tensor& logits, const at::Tensor& target, const FocalLossOptions& options = {});

struct SigmoidFocalLossOptions {
  double alpha = 0.25;  ///< weight of positives, in [0, 1]; negatives have weight 1 − alpha; −1: no weighting
  double gamma = 2;     ///< how strongly easy examples are down-weighted, at least 0
  at::Tensor weight{};  ///< factor of each value, broadcast to the logits; undefined: 1
  double label_smoothing = 0;  ///< targets t become t·(1−s) + s/2
  Reduction reduction = Reduction::none;
};

/// Focal loss of each logit, for detection and multi-label targets.
/// Shapes: logits of any shape; target of the same shape with values in [0, 1] → the logits' shape, or scalar with a
///         reduction
/// Ref:    torchvision.ops.sigmoid_focal_loss; arXiv:1708.02002
at::Tensor sigmoid_focal_loss(const at::Tensor& logits, const at::Tensor& target,
                              const SigmoidFocalLossOptions& options = {});

struct AsymmetricLossOptions {
  double gamma_neg = 4;        ///< focusing parameter of negatives, at least 0
  double gamma_pos = 1;        ///< focusing parameter of positives, at least 0
  double clip = 0.05;          ///< in [0, 1); negatives with a probability up to this value have zero loss
  double eps = 1e-8;           ///< lower bound of a probability in the logarithm
  at::Tensor weight{};         ///< factor of each value, broadcast to the logits; undefined: 1
  double label_smoothing = 0;  ///< targets t become t·(1−s) + s/2
  Reduction reduction = Reduction::sum;
};

/// Multi-label loss for targets with many negatives per positive. It down-weights negatives more than positives, and
/// ignores easy negatives.
/// Shapes: logits of any shape; target of the same shape with values in [0, 1] → scalar, or the logits' shape without
///         reduction
/// Ref:    timm AsymmetricLossMultiLabel; arXiv:2009.14119
at::Tensor asymmetric_loss(const at::Tensor& logits, const at::Tensor& target,
                           const AsymmetricLossOptions& options = {});

/// Converts class indices to smoothed probabilities: 1 − s + s/C for the class, and s/C for all others.
/// Params: dtype – floating-point dtype of the result
/// Shapes: labels [N, …], int64 in [0, C) → [N, C, …]
/// Ref:    timm.data.mixup.one_hot; torch.nn.functional.one_hot
at::Tensor smooth_one_hot(const at::Tensor& labels, int64_t num_classes, double label_smoothing = 0,
                          at::ScalarType dtype = at::kFloat);

}  // namespace bellows::nn
