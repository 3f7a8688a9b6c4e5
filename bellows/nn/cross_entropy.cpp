#include "bellows/nn/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "bellows/nn/cross_entropy_impl.h"
#include "bellows/nn/loss_check.h"
#include "bellows/nn/softmax_op.h"

namespace bellows::nn {

namespace loss {

at::Tensor fresh_statistics(int64_t rows, const at::Tensor& like) {
  at::Tensor state = at::zeros({4, rows}, like.options().dtype(sum_type(like)));
  state[0].fill_(-HUGE_VAL);
  return state;
}

RowLosses row_losses(const at::Tensor& state, const at::Tensor& kept, double smoothing, int64_t classes) {
  const at::Tensor log_sum = state[0] + state[1].log();
  at::Tensor losses = log_sum - state[2] * (1 - smoothing);
  if (smoothing != 0) losses = losses - state[3] * (smoothing / static_cast<double>(classes));
  return {at::where(kept, losses, at::zeros({}, losses.options())), log_sum};
}

at::Tensor reduced_losses(const at::Tensor& losses, const at::Tensor& kept, Reduction reduction) {
  if (reduction == Reduction::none) return losses;
  return reduction == Reduction::sum ? losses.sum() : losses.sum() / kept.sum();
}

at::Tensor row_scales(const at::Tensor& kept, const at::Tensor& losses, Reduction reduction) {
  const at::Tensor ones = kept.to(losses.scalar_type());
  return reduction == Reduction::mean ? ones / kept.sum().clamp_min(1) : ones;
}

void check_classes(const char* function, const at::Tensor& target, const at::Tensor& kept, int64_t classes) {
  if (!target.is_cpu() || target.numel() == 0) return;
  const auto [low, high] = at::aminmax(target.masked_fill(~kept, 0));
  const int64_t first = low.item<int64_t>(), last = high.item<int64_t>();
  TORCH_CHECK_VALUE(first >= 0 && last < classes, function, ": expected targets from 0 to ", classes - 1,
                    " or ignore_index, got ", first < 0 ? first : last, ".");
}

void refuse_second_order(const char* function) {
  TORCH_CHECK_VALUE(!c10::GradMode::is_enabled(), function,
                    ": has no gradient of its gradient (create_graph). Use at::cross_entropy_loss there.");
}

}  // namespace loss

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SoftmaxCrossEntropy : torch::autograd::Function<SoftmaxCrossEntropy> {
  /// logits [N, C], target [N].
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& target,
                            const CrossEntropyOptions& options) {
    const at::Tensor kept = target.ne(options.ignore_index);
    const at::Tensor state = loss::fresh_statistics(logits.size(0), logits);
    softmax_statistics_op(state, logits, target, 0, options.label_smoothing != 0);
    const auto [losses, log_sum] = loss::row_losses(state, kept, options.label_smoothing, logits.size(1));
    context->save_for_backward({logits, target, log_sum});
    context->saved_data["options"] = std::make_tuple(options.label_smoothing, options.ignore_index,
                                                     static_cast<int64_t>(options.reduction), options.overwrite_logits);
    return loss::reduced_losses(losses, kept, options.reduction);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    loss::refuse_second_order("softmax_cross_entropy");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &logits = saved[0], &target = saved[1], &log_sum = saved[2];
    const auto [smoothing, ignore_index, reduction, overwrite] =
        context->saved_data["options"].to<std::tuple<double, int64_t, int64_t, bool>>();
    const at::Tensor kept = target.ne(ignore_index);
    // A gradient of a loss that nobody counts may be NaN.
    const at::Tensor scale = at::where(
        kept,
        loss::row_scales(kept, log_sum, static_cast<Reduction>(reduction)) * gradients[0].to(log_sum.scalar_type()),
        at::zeros({}, log_sum.options()));
    const at::Tensor gradient =
        overwrite ? logits.detach() : at::empty_strided(logits.sizes(), logits.strides(), logits.options());
    if (overwrite) torch::autograd::impl::bump_version(logits);
    softmax_gradient_op(gradient, logits, target, log_sum, scale, 0, 1 - smoothing,
                        smoothing / static_cast<double>(logits.size(1)));
    return {gradient, {}, {}};
  }
};

bool is_leaf_or_view_of_one(const at::Tensor& tensor) {
  return tensor.is_leaf() || (tensor.is_view() && tensor._base().is_leaf());
}

}  // namespace

at::Tensor softmax_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                 const CrossEntropyOptions& options) {
  constexpr const char* name = "softmax_cross_entropy";
  loss::check_smoothing(name, options.label_smoothing);
  TORCH_CHECK_VALUE(loss::has_kernels(logits) && logits.dim() >= 1 && logits.size(-1) >= 1, name,
                    ": expected logits [*, C] in Float, Double, BFloat16 or Half, got ", loss::describe(logits), ".");
  loss::check_last_class_target(name, target, logits);
  const int64_t classes = logits.size(-1);
  const at::Tensor flat = logits.reshape({-1, classes}), flat_target = target.reshape({-1});
  loss::check_classes(name, flat_target, flat_target.ne(options.ignore_index), classes);
  // The gradient is laid out as the rows: none may share memory with another.
  const bool rows_lie_well = (flat.stride(1) == 1 || classes == 1) && (flat.stride(0) >= classes || flat.size(0) <= 1);
  CrossEntropyOptions own = options;
  own.overwrite_logits = options.overwrite_logits && rows_lie_well && !is_leaf_or_view_of_one(logits);
  const at::Tensor result = SoftmaxCrossEntropy::apply(rows_lie_well ? flat : flat.contiguous(), flat_target, own);
  return options.reduction == Reduction::none ? result.view(target.sizes()) : result;
}

}  // namespace bellows::nn
