#include "bellows/nn/distillation.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "bellows/nn/loss_check.h"

namespace bellows::nn {

namespace {

at::IntArrayRef positions_of(const at::Tensor& x) {
  return x.sizes().slice(0, static_cast<size_t>(x.dim() - 1));
}

void check_temperature(const char* function, double temperature) {
  TORCH_CHECK_VALUE(temperature > 0 && std::isfinite(temperature), function, ": expected a positive temperature, got ",
                    temperature, ".");
}

void check_same_shape(const char* function, const at::Tensor& student, const at::Tensor& teacher, const char* what) {
  TORCH_CHECK_VALUE(teacher.defined() && student.sizes() == teacher.sizes(), function, ": expected ", what,
                    " of one shape for student and teacher, got ", loss::describe(student), " and ",
                    loss::describe(teacher), ".");
}

/// Reduces over the positions of the mask, or over all positions.
at::Tensor reduced(const char* function, const at::Tensor& values, const at::Tensor& mask,
                   Reduction reduction = Reduction::mean) {
  if (!mask.defined()) {
    return reduction == Reduction::mean ? values.mean() : reduction == Reduction::sum ? values.sum() : values;
  }
  TORCH_CHECK_VALUE(mask.sizes() == values.sizes(), function, ": expected a mask of shape ", values.sizes(), ", got ",
                    loss::describe(mask), ".");
  const at::Tensor counted = mask.to(at::kBool);
  const at::Tensor kept = at::where(counted, values, at::zeros_like(values));
  if (reduction == Reduction::none) return kept;
  return reduction == Reduction::sum ? kept.sum() : kept.sum() / counted.sum();
}

/// Σ p · (log p − log q) over the last dim. A class without probability in p adds nothing.
at::Tensor divergence(const at::Tensor& log_p, const at::Tensor& log_q) {
  const at::Tensor p = log_p.exp();
  return at::where(p > 0, p * (log_p - log_q), at::zeros_like(p)).sum(-1);
}

/// log(1 − Σ exp(log_q)): the share of all classes that are not listed.
at::Tensor log_of_rest(const at::Tensor& log_q) {
  const at::Tensor rest = 1 - log_q.exp().sum(-1, /*keepdim=*/true);
  return rest.clamp_min(std::numeric_limits<float>::min()).log();
}

}  // namespace

at::Tensor distillation_loss(const at::Tensor& student, const at::Tensor& teacher, const DistillationOptions& options) {
  constexpr const char* name = "distillation_loss";
  check_temperature(name, options.temperature);
  const at::Tensor x = loss::logits_of(name, student, 1);
  check_same_shape(name, x, teacher, "logits");
  const double t = options.temperature;
  const at::Tensor log_p = at::log_softmax(teacher.detach().to(x.scalar_type()) / t, -1);
  return reduced(name, divergence(log_p, at::log_softmax(x / t, -1)), options.mask, options.reduction) * (t * t);
}

TopLogits top_logits(const at::Tensor& teacher, int64_t k, double temperature) {
  constexpr const char* name = "top_logits";
  check_temperature(name, temperature);
  const at::Tensor x = loss::logits_of(name, teacher.detach(), 1);
  TORCH_CHECK_VALUE(k >= 1 && k <= x.size(-1), name, ": expected k from 1 to the number of classes ", x.size(-1),
                    ", got ", k, ".");
  auto [values, indices] = x.topk(k, -1);
  const at::Tensor others = x.scatter(-1, indices, -std::numeric_limits<double>::infinity());
  return {.values = values, .indices = indices, .rest = at::logsumexp(others / temperature, -1)};
}

at::Tensor distillation_loss(const at::Tensor& student, const TopLogits& teacher, const DistillationOptions& options) {
  constexpr const char* name = "distillation_loss";
  check_temperature(name, options.temperature);
  const at::Tensor x = loss::logits_of(name, student, 1);
  TORCH_CHECK_VALUE(teacher.values.defined() && teacher.indices.defined() && teacher.rest.defined() &&
                        positions_of(teacher.values) == positions_of(x) && teacher.rest.sizes() == positions_of(x) &&
                        teacher.indices.sizes() == teacher.values.sizes(),
                    name, ": expected the teacher's largest logits for the student's positions ", positions_of(x),
                    ", got ", loss::describe(teacher.values), ".");
  const double t = options.temperature;
  const at::Tensor rest = teacher.rest.to(x.scalar_type()).unsqueeze(-1);
  const at::Tensor log_p = at::log_softmax(at::cat({teacher.values.to(x.scalar_type()) / t, rest}, -1), -1);
  const at::Tensor log_q = at::log_softmax(x / t, -1).gather(-1, teacher.indices);
  const at::Tensor terms = divergence(log_p, at::cat({log_q, log_of_rest(log_q)}, -1));
  return reduced(name, terms, options.mask, options.reduction) * (t * t);
}

at::Tensor hidden_mse_loss(const at::Tensor& student, const at::Tensor& teacher, const at::Tensor& mask) {
  constexpr const char* name = "hidden_mse_loss";
  const at::Tensor x = loss::logits_of(name, student, 1);
  check_same_shape(name, x, teacher, "hidden states");
  return reduced(name, (x - teacher.detach().to(x.scalar_type())).square().mean(-1), mask);
}

at::Tensor hidden_cosine_loss(const at::Tensor& student, const at::Tensor& teacher, const at::Tensor& mask) {
  constexpr const char* name = "hidden_cosine_loss";
  constexpr double epsilon = 1e-12;  // of torch.nn.CosineEmbeddingLoss: added to both squared norms
  const at::Tensor x = loss::logits_of(name, student, 1);
  check_same_shape(name, x, teacher, "hidden states");
  const at::Tensor y = teacher.detach().to(x.scalar_type());
  const at::Tensor norms = ((x.square().sum(-1) + epsilon) * (y.square().sum(-1) + epsilon)).sqrt();
  return reduced(name, 1 - (x * y).sum(-1) / norms, mask);
}

at::Tensor attention_transfer_loss(const at::Tensor& student, const at::Tensor& teacher) {
  constexpr const char* name = "attention_transfer_loss";
  const at::Tensor x = loss::logits_of(name, student, 3);
  const bool fits = teacher.defined() && teacher.dim() == x.dim() && teacher.size(0) == x.size(0) &&
                    teacher.sizes().slice(2) == x.sizes().slice(2);
  TORCH_CHECK_VALUE(fits, name, ": expected feature maps [N, C, *] whose shapes differ only in C, got ",
                    loss::describe(x), " and ", loss::describe(teacher), ".");
  const auto attention = [&](const at::Tensor& maps) {
    const at::Tensor flat = maps.square().mean(1).flatten(1);
    return flat / flat.norm(2, 1, /*keepdim=*/true).clamp_min(1e-12);
  };
  return (attention(x) - attention(teacher.detach().to(x.scalar_type()))).square().mean();
}

at::Tensor triple_loss(const TripleLossInputs& inputs, const DistillationOptions& options,
                       const TripleLossWeights& weights) {
  constexpr const char* name = "triple_loss";
  const at::Tensor x = loss::logits_of(name, inputs.student_logits, 1);
  TORCH_CHECK_VALUE(inputs.labels.defined() && inputs.labels.sizes() == positions_of(x), name,
                    ": expected labels of shape ", positions_of(x), ", got ", loss::describe(inputs.labels), ".");
  const at::Tensor cross_entropy =
      at::cross_entropy_loss(x.flatten(0, -2), inputs.labels.flatten(), {}, at::Reduction::Mean, /*ignore_index=*/-100);
  return weights.distillation * distillation_loss(x, inputs.teacher_logits, options) + weights.labels * cross_entropy +
         weights.cosine * hidden_cosine_loss(inputs.student_hidden, inputs.teacher_hidden, options.mask);
}

}  // namespace bellows::nn
