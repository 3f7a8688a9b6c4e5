#include "bellows/parallel/tensor/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <vector>

#include "bellows/parallel/exchange_op.h"
#include "bellows/parallel/tensor/tensor_plan.h"
#include "bellows/tap/deferral.h"

namespace bellows::parallel {

namespace {

using LossContext = torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The classes of this rank, and the options.
struct LossJob {
  comm::Group group;
  TensorCrossEntropyOptions options;
  int64_t classes = 0, first = 0, count = 0;
};

struct SavedLossJob final : torch::CustomClassHolder {
  explicit SavedLossJob(LossJob saved) : job(std::move(saved)) {}
  LossJob job;
};

at::Tensor widened(const at::Tensor& logits) {
  return logits.to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

/// The targets of this rank: positions within its classes, and whether each target is one of them. Both [R].
struct OwnTargets {
  at::Tensor position, own;
};

OwnTargets own_targets(const at::Tensor& target, const LossJob& job) {
  const at::Tensor position = target - job.first;
  return {position.clamp(0, job.count - 1), position.ge(0).logical_and(position.lt(job.count))};
}

/// Loss of each row [R] and the logarithm of each row's sum [R].
std::pair<at::Tensor, at::Tensor> row_losses(const at::Tensor& logits, const at::Tensor& target, const LossJob& job) {
  const at::Tensor wide = widened(logits);
  const at::Tensor most = all_reduce_op(wide.amax(1), job.group, comm::Reduce::max);
  const OwnTargets targets = own_targets(target, job);
  const double smoothing = job.options.label_smoothing;
  std::vector<at::Tensor> parts = {
      (wide - most.unsqueeze(1)).exp_().sum(1),
      wide.gather(1, targets.position.unsqueeze(1)).squeeze(1).masked_fill(targets.own.logical_not(), 0)};
  if (smoothing > 0) parts.push_back(wide.sum(1));
  const at::Tensor sums = all_reduce_op(at::stack(parts), job.group);
  const at::Tensor log_sum = sums[0].log() + most;
  at::Tensor loss = log_sum - sums[1] * (1 - smoothing);
  if (smoothing > 0) loss = loss - sums[2] * (smoothing / static_cast<double>(job.classes));
  return {loss, log_sum};
}

struct DividedLoss : torch::autograd::Function<DividedLoss> {
  /// Shapes: logits [R, classes of this rank], target [R] → scalar or [R]
  static at::Tensor forward(LossContext* context, const at::Tensor& logits, const at::Tensor& target,
                            const LossJob& job) {
    const auto [losses, log_sum] = row_losses(logits, target, job);
    const at::Tensor counted = target.ne(job.options.ignore_index);
    const at::Tensor count = counted.sum().to(losses.scalar_type());
    context->save_for_backward({logits, target, log_sum, count});
    context->saved_data["job"] = c10::IValue::make_capsule(c10::make_intrusive<SavedLossJob>(job));
    const at::Tensor loss = losses.masked_fill(counted.logical_not(), 0);
    if (job.options.reduction == nn::Reduction::none) return loss;
    return job.options.reduction == nn::Reduction::sum ? loss.sum() : loss.sum() / count;
  }

  static variable_list backward(LossContext* context, const variable_list& gradients) {
    TORCH_CHECK(!c10::GradMode::is_enabled(), "parallel::cross_entropy does not support second derivatives.");
    const variable_list saved = context->get_saved_variables();
    const auto capsule = context->saved_data["job"].toCapsule();
    const LossJob& job = static_cast<const SavedLossJob&>(*capsule).job;
    const at::Tensor &logits = saved[0], &target = saved[1], &log_sum = saved[2], &count = saved[3];
    at::Tensor factor = gradients[0].to(log_sum.scalar_type());
    if (job.options.reduction == nn::Reduction::mean) factor = factor / count;
    factor = factor.expand_as(log_sum).masked_fill(target.eq(job.options.ignore_index), 0);
    const double smoothing = job.options.label_smoothing;
    const OwnTargets targets = own_targets(target, job);
    at::Tensor gradient = (widened(logits) - log_sum.unsqueeze(1)).exp_();
    if (smoothing > 0) gradient.sub_(smoothing / static_cast<double>(job.classes));
    gradient.scatter_add_(1, targets.position.unsqueeze(1),
                          targets.own.unsqueeze(1).to(gradient.scalar_type()).mul_(smoothing - 1));
    gradient.mul_(factor.unsqueeze(1));
    return {gradient.to(logits.scalar_type()), {}, {}};
  }
};

void check_targets_now(const at::Tensor& target, int64_t classes, int64_t ignore_index) {
  const at::Tensor valid = target.eq(ignore_index).logical_or(target.ge(0).logical_and(target.lt(classes)));
  TORCH_CHECK_VALUE(valid.all().item<bool>(), "parallel::cross_entropy: expected targets from 0 to ", classes - 1,
                    " or the ignore_index ", ignore_index, ", got ",
                    target.masked_select(valid.logical_not())[0].item<int64_t>(), ".");
}

/// In compiled functions, an operator of the program checks the targets, because reading them here would run all pending
/// operators.
void check_targets(const at::Tensor& target, int64_t classes, int64_t ignore_index) {
  if (!tap::active_deferral()) return check_targets_now(target, classes, ignore_index);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("bellows::check_targets", "").typed<decltype(check_targets_now)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  op.call(target, classes, ignore_index);
}

void check_loss(const at::Tensor& logits, const at::Tensor& target, const LossJob& job) {
  const TensorCrossEntropyOptions& o = job.options;
  TORCH_CHECK_VALUE(logits.defined() && logits.is_floating_point() && logits.dim() >= 1 && logits.size(-1) == job.count,
                    "parallel::cross_entropy: expected floating-point logits with ", job.count, " of ", job.classes,
                    " classes in the last dim on rank ", job.group.rank(), ", got ",
                    logits.defined() ? c10::str(logits.scalar_type(), " [", c10::Join(", ", logits.sizes()), "]")
                                     : std::string("none"),
                    ".");
  TORCH_CHECK_VALUE(target.defined() && target.scalar_type() == at::kLong &&
                        target.sizes() == logits.sizes().slice(0, static_cast<size_t>(logits.dim() - 1)),
                    "parallel::cross_entropy: expected int64 targets, one for each row of the logits, got ",
                    target.defined() ? c10::str(target.scalar_type(), " [", c10::Join(", ", target.sizes()), "]")
                                     : std::string("none"),
                    ".");
  TORCH_CHECK_VALUE(o.label_smoothing >= 0 && o.label_smoothing <= 1,
                    "parallel::cross_entropy: expected label_smoothing in [0, 1], got ", o.label_smoothing, ".");
  if (target.is_cpu()) check_targets(target, job.classes, o.ignore_index);
}

}  // namespace

// Registered in the source file that calls the operator, so that a static link includes the registration.
TORCH_LIBRARY_FRAGMENT(bellows, library) {
  library.def("check_targets(Tensor target, int classes, int ignore_index) -> ()", {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(bellows, CPU, library) {
  library.impl("check_targets", check_targets_now);
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t classes, const comm::Group& group,
                         const TensorCrossEntropyOptions& options) {
  const int64_t first = first_of_rank(classes, group.rank(), group.size());
  const LossJob job{group, options, classes, first, first_of_rank(classes, group.rank() + 1, group.size()) - first};
  check_loss(logits, target, job);
  const at::Tensor loss = DividedLoss::apply(logits.reshape({-1, job.count}), target.reshape({-1}), job);
  return options.reduction == nn::Reduction::none ? loss.view(target.sizes()) : loss;
}

}  // namespace bellows::parallel
