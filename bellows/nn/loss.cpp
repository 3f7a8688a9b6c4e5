#include "bellows/nn/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/where.h>
#include <ATen/ops/xlogy.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "bellows/nn/loss_check.h"

namespace bellows::nn {

namespace {

at::Tensor reduced(const at::Tensor& values, Reduction reduction) {
  switch (reduction) {
    case Reduction::mean:
      return values.mean();
    case Reduction::sum:
      return values.sum();
    default:
      return values;
  }
}

/// Label smoothing of 0/1 targets: each value has two classes.
at::Tensor smooth_binary(const at::Tensor& target, double smoothing) {
  return smoothing == 0 ? target : target * (1 - smoothing) + smoothing / 2;
}

int64_t class_dim(const at::Tensor& logits) {
  return logits.dim() == 1 ? 0 : 1;
}

/// The weight [C] in a shape that broadcasts to the logits.
at::Tensor over_classes(const at::Tensor& weight, const at::Tensor& logits) {
  std::vector<int64_t> shape(logits.dim(), 1);
  shape[class_dim(logits)] = weight.numel();
  return weight.view(shape);
}

/// Reduces the values of a class-index loss. Ignored values become zero, and the mean is weighted by the weights of the
/// other targets.
at::Tensor reduced_over_targets(const at::Tensor& values, const at::Tensor& target, const at::Tensor& weight,
                                int64_t ignore_index, Reduction reduction) {
  const at::Tensor kept = target.ne(ignore_index);
  const at::Tensor result = at::where(kept, values, at::zeros({}, values.options()));
  if (reduction != Reduction::mean) return reduced(result, reduction);
  if (!weight.defined()) return result.sum() / kept.sum();
  const at::Tensor weights = weight.index_select(0, target.masked_fill(~kept, 0).flatten()).view_as(target);
  return result.sum() / (weights * kept).sum();
}

/// Scale of the terms: (1 − p)^gamma. The gradient is finite for every gamma.
at::Tensor focus(const at::Tensor& log_p, double gamma) {
  return (-log_p.expm1()).clamp_min(1e-12).pow(gamma);
}

}  // namespace

at::Tensor smooth_one_hot(const at::Tensor& labels, int64_t num_classes, double label_smoothing, at::ScalarType dtype) {
  loss::check_smoothing("smooth_one_hot", label_smoothing);
  TORCH_CHECK_VALUE(num_classes > 0, "smooth_one_hot: expected num_classes of at least 1, got ", num_classes, ".");
  TORCH_CHECK_VALUE(labels.defined() && labels.scalar_type() == at::kLong && labels.dim() >= 1,
                    "smooth_one_hot: expected labels [N, …] of int64, got ", loss::describe(labels), ".");
  TORCH_CHECK_VALUE(c10::isFloatingType(dtype), "smooth_one_hot: expected a floating-point dtype, got ", dtype, ".");
  std::vector<int64_t> shape = labels.sizes().vec();
  shape.insert(shape.begin() + 1, num_classes);
  const double off = label_smoothing / static_cast<double>(num_classes);
  return at::full(shape, off, labels.options().dtype(dtype))
      .scatter_(1, labels.unsqueeze(1), 1 - label_smoothing + off);
}

at::Tensor binary_cross_entropy_with_logits(const at::Tensor& logits, const at::Tensor& target,
                                            const BinaryCrossEntropyOptions& options) {
  constexpr const char* name = "binary_cross_entropy_with_logits";
  loss::check_smoothing(name, options.label_smoothing);
  const at::Tensor x = loss::logits_of(name, logits);
  const bool indices = loss::is_class_indices(target, x);
  if (!indices) loss::check_dense_target(name, target, x);
  loss::check_broadcasts(name, "weight", options.weight, x);
  loss::check_broadcasts(name, "pos_weight", options.pos_weight, x);
  const at::Tensor dense = indices ? smooth_one_hot(target, x.size(1), options.label_smoothing, x.scalar_type())
                                   : smooth_binary(target.to(x.scalar_type()), options.label_smoothing);
  return at::binary_cross_entropy_with_logits(x, dense, loss::maybe(options.weight, x),
                                              loss::maybe(options.pos_weight, x), loss::to_aten(options.reduction));
}

at::Tensor nll_loss(const at::Tensor& log_probs, const at::Tensor& target, const NLLLossOptions& options) {
  loss::check_smoothing("nll_loss", options.label_smoothing);
  const at::Tensor x = loss::logits_of("nll_loss", log_probs);
  loss::check_class_target("nll_loss", target, x);
  const at::Tensor weight = loss::class_weight("nll_loss", options.weight, x);
  const double s = options.label_smoothing;
  const at::Tensor hard =
      at::nll_loss_nd(x, target, loss::maybe(weight, x), loss::to_aten(options.reduction), options.ignore_index);
  if (s == 0) return hard;
  const at::Tensor spread = -(weight.defined() ? x * over_classes(weight, x) : x).sum(class_dim(x));
  const at::Tensor soft = reduced_over_targets(spread, target, weight, options.ignore_index, options.reduction);
  return hard * (1 - s) + soft * (s / static_cast<double>(x.size(class_dim(x))));
}

at::Tensor soft_target_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                     const SoftTargetOptions& options) {
  constexpr const char* name = "soft_target_cross_entropy";
  loss::check_smoothing(name, options.label_smoothing);
  const at::Tensor x = loss::logits_of(name, logits, 1);
  loss::check_dense_target(name, target, x);
  const at::Tensor weight = loss::class_weight(name, options.weight, x);
  return at::cross_entropy_loss(x, target.to(x.scalar_type()), loss::maybe(weight, x), loss::to_aten(options.reduction),
                                /*ignore_index=*/-100, options.label_smoothing);
}

at::Tensor soft_target_kl_div(const at::Tensor& logits, const at::Tensor& target, const SoftTargetOptions& options) {
  constexpr const char* name = "soft_target_kl_div";
  loss::check_smoothing(name, options.label_smoothing);
  const at::Tensor x = loss::logits_of(name, logits, 1);
  loss::check_dense_target(name, target, x);
  const at::Tensor weight = loss::class_weight(name, options.weight, x);
  const int64_t dim = class_dim(x);
  const double s = options.label_smoothing;
  const at::Tensor given = target.to(x.scalar_type());
  const at::Tensor q = s == 0 ? given : given * (1 - s) + s / static_cast<double>(x.size(dim));
  const at::Tensor terms = at::xlogy(q, q) - q * at::log_softmax(x, dim);
  return reduced((weight.defined() ? terms * over_classes(weight, x) : terms).sum(dim), options.reduction);
}

at::Tensor focal_loss(const at::Tensor& logits, const at::Tensor& target, const FocalLossOptions& options) {
  loss::check_smoothing("focal_loss", options.label_smoothing);
  loss::check_not_negative("focal_loss", "gamma", options.gamma);
  const at::Tensor x = loss::logits_of("focal_loss", logits);
  loss::check_class_target("focal_loss", target, x);
  const at::Tensor weight = loss::class_weight("focal_loss", options.weight, x);
  const int64_t dim = class_dim(x);
  const at::Tensor log_p = at::log_softmax(x, dim);
  at::Tensor terms = -log_p * focus(log_p, options.gamma);
  if (weight.defined()) terms = terms * over_classes(weight, x);
  const at::Tensor index = target.masked_fill(target.eq(options.ignore_index), 0).unsqueeze(dim);
  const double s = options.label_smoothing;
  at::Tensor values = terms.gather(dim, index).squeeze(dim);
  if (s != 0) values = values * (1 - s) + terms.sum(dim) * (s / static_cast<double>(x.size(dim)));
  return reduced_over_targets(values, target, weight, options.ignore_index, options.reduction);
}

at::Tensor sigmoid_focal_loss(const at::Tensor& logits, const at::Tensor& target,
                              const SigmoidFocalLossOptions& options) {
  constexpr const char* name = "sigmoid_focal_loss";
  loss::check_smoothing(name, options.label_smoothing);
  loss::check_not_negative(name, "gamma", options.gamma);
  TORCH_CHECK_VALUE(options.alpha == -1 || (options.alpha >= 0 && options.alpha <= 1), name,
                    ": expected alpha in [0, 1], or -1 for none, got ", options.alpha, ".");
  const at::Tensor x = loss::logits_of(name, logits);
  loss::check_dense_target(name, target, x);
  loss::check_broadcasts(name, "weight", options.weight, x);
  const at::Tensor t = smooth_binary(target.to(x.scalar_type()), options.label_smoothing), p = x.sigmoid();
  const at::Tensor miss = p * (1 - t) + (1 - p) * t;  // 1 − the probability of the target
  at::Tensor values = at::binary_cross_entropy_with_logits(x, t, {}, {}, at::Reduction::None) *
                      miss.clamp_min(1e-12).pow(options.gamma);
  if (options.alpha >= 0) values = values * (t * options.alpha + (1 - t) * (1 - options.alpha));
  if (options.weight.defined()) values = values * options.weight.to(x.scalar_type());
  return reduced(values, options.reduction);
}

at::Tensor asymmetric_loss(const at::Tensor& logits, const at::Tensor& target, const AsymmetricLossOptions& options) {
  constexpr const char* name = "asymmetric_loss";
  loss::check_smoothing(name, options.label_smoothing);
  loss::check_not_negative(name, "gamma_neg", options.gamma_neg);
  loss::check_not_negative(name, "gamma_pos", options.gamma_pos);
  TORCH_CHECK_VALUE(options.clip >= 0 && options.clip < 1, name, ": expected clip in [0, 1), got ", options.clip, ".");
  TORCH_CHECK_VALUE(options.eps > 0 && options.eps < 1, name, ": expected eps in (0, 1), got ", options.eps, ".");
  const at::Tensor x = loss::logits_of(name, logits);
  loss::check_dense_target(name, target, x);
  loss::check_broadcasts(name, "weight", options.weight, x);
  const at::Tensor t = smooth_binary(target.to(x.scalar_type()), options.label_smoothing);
  const at::Tensor positive = x.sigmoid();
  const at::Tensor negative = (1 - positive + options.clip).clamp_max(1);
  const at::Tensor likelihood =
      t * positive.clamp_min(options.eps).log() + (1 - t) * negative.clamp_min(options.eps).log();
  const at::Tensor miss = (1 - (positive * t + negative * (1 - t))).clamp_min(1e-12);
  const at::Tensor gamma = t * options.gamma_pos + (1 - t) * options.gamma_neg;
  at::Tensor values = -likelihood * miss.pow(gamma);
  if (options.weight.defined()) values = values * options.weight.to(x.scalar_type());
  return reduced(values, options.reduction);
}

}  // namespace bellows::nn
