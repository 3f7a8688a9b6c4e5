#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/nn/loss.h"

/// Losses of knowledge distillation, in which a student model learns from the outputs of a teacher model.
///
/// For all functions:
/// Params:   mask – bool or 0/1, true at the positions that count; undefined: all positions
/// Numerics: bf16 and fp16 tensors are first cast to fp32. The teacher's tensors get no gradient. Values and gradients
///           agree with PyTorch to 1e-10 in float64 (tests/nn/distillation_test.cpp)
/// Cost:     composed of libtorch's operators, without host synchronization
/// Threads:  thread-safe
/// Throws:   c10::ValueError if shapes, dtypes or options are invalid (the message states what was expected)
namespace bellows::nn {

struct DistillationOptions {
  double temperature = 2;                 ///< divides the logits of both models; positive
  at::Tensor mask{};                      ///< [*]
  Reduction reduction = Reduction::mean;  ///< over the positions of the mask; none: 0 at all other positions
};

/// Kullback–Leibler divergence of the student's softened probabilities from the teacher's, times the squared temperature,
/// so that its gradients have the same size for all temperatures.
/// Shapes: student, teacher [*, C] → scalar, or [*] without reduction
/// Ref:    Hinton et al., arXiv:1503.02531; T² · kl_div(log_softmax(s / T), softmax(t / T), reduction="batchmean")
at::Tensor distillation_loss(const at::Tensor& student, const at::Tensor& teacher,
                             const DistillationOptions& options = {});

/// The `k` largest logits of each position, for a cache of a teacher's outputs.
struct TopLogits {
  at::Tensor values{};   ///< [*, k]
  at::Tensor indices{};  ///< int64 [*, k]
  at::Tensor rest{};  ///< [*], logsumexp of all other logits at the temperature; −inf if k is the number of classes
};
/// Params: temperature – of the loss in which the logits are used
TopLogits top_logits(const at::Tensor& teacher, int64_t k, double temperature);
/// distillation_loss() from a teacher's largest logits. All other classes count as one class.
/// Shapes: student [*, C]
at::Tensor distillation_loss(const at::Tensor& student, const TopLogits& teacher,
                             const DistillationOptions& options = {});

/// Mean squared error of hidden states.
/// Shapes: student, teacher [*, D]; mask [*]
at::Tensor hidden_mse_loss(const at::Tensor& student, const at::Tensor& teacher, const at::Tensor& mask = {});

/// 1 − cosine similarity of hidden states, averaged over the positions.
/// Shapes: student, teacher [*, D]; mask [*]
/// Ref:    torch.nn.CosineEmbeddingLoss with target 1, as in DistilBERT's training
at::Tensor hidden_cosine_loss(const at::Tensor& student, const at::Tensor& teacher, const at::Tensor& mask = {});

/// Attention transfer between feature maps: the mean squared difference of the normalized sums of squares over channels.
/// The numbers of channels may differ.
/// Shapes: student [N, C1, *], teacher [N, C2, *]
/// Ref:    Zagoruyko and Komodakis, arXiv:1612.03928
at::Tensor attention_transfer_loss(const at::Tensor& student, const at::Tensor& teacher);

/// The weights of the three parts of triple_loss(); the defaults are those of DistilBERT's training.
struct TripleLossWeights {
  double distillation = 5, labels = 2, cosine = 1;
};
/// The tensors of triple_loss().
struct TripleLossInputs {
  at::Tensor student_logits{}, teacher_logits{}, student_hidden{}, teacher_hidden{}, labels{};
};
/// The loss of DistilBERT: a weighted sum of distillation_loss() and hidden_cosine_loss() over the positions of `mask`,
/// and of the cross-entropy of the labels.
/// Shapes: student_logits, teacher_logits [*, C]; student_hidden, teacher_hidden [*, D]; labels int64 [*], −100: ignored
/// Ref:    arXiv:1910.01108
at::Tensor triple_loss(const TripleLossInputs& inputs, const DistillationOptions& options = {},
                       const TripleLossWeights& weights = {});

}  // namespace bellows::nn
