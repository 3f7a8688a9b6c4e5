#include "bellows/nn/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "bellows/nn/autocast_impl.h"
#include "bellows/nn/loss_check.h"
#include "bellows/nn/softmax_op.h"
#include "bellows/tap/deferral.h"

namespace bellows::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// --- shared by both functions

/// The dtype in which rows of logits are summed.
at::ScalarType sum_type(const at::Tensor& scores) {
  return scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The initial state of softmax_statistics_op(), [4, rows].
at::Tensor fresh_statistics(int64_t rows, const at::Tensor& like) {
  at::Tensor state = at::zeros({4, rows}, like.options().dtype(sum_type(like)));
  state[0].fill_(-HUGE_VAL);
  return state;
}

struct RowLosses {
  at::Tensor losses, log_sum;  ///< [N]
};
/// Params: kept – [N] bool; false for ignored targets
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

/// The factor of each row in the reduced loss, [N] in the dtype of `losses`: 0 for ignored targets.
at::Tensor row_scales(const at::Tensor& kept, const at::Tensor& losses, Reduction reduction) {
  const at::Tensor ones = kept.to(losses.scalar_type());
  return reduction == Reduction::mean ? ones / kept.sum().clamp_min(1) : ones;
}

/// Throws: c10::ValueError if a target on the CPU is neither a class nor ignored
void check_classes(const char* function, const at::Tensor& target, const at::Tensor& kept, int64_t classes) {
  if (!target.is_cpu() || target.numel() == 0) return;
  const auto [low, high] = at::aminmax(target.masked_fill(~kept, 0));
  const int64_t first = low.item<int64_t>(), last = high.item<int64_t>();
  TORCH_CHECK_VALUE(first >= 0 && last < classes, function, ": expected targets from 0 to ", classes - 1,
                    " or ignore_index, got ", first < 0 ? first : last, ".");
}

/// Throws: c10::ValueError if the backward pass is recorded (create_graph)
void refuse_second_order(const char* function) {
  TORCH_CHECK_VALUE(!c10::GradMode::is_enabled(), function,
                    ": double backward (create_graph) is not supported. Use at::cross_entropy_loss instead.");
}

// --- given logits

struct SoftmaxCrossEntropy : torch::autograd::Function<SoftmaxCrossEntropy> {
  /// logits [N, C], target [N].
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& target,
                            const CrossEntropyOptions& options) {
    const at::Tensor kept = target.ne(options.ignore_index);
    const at::Tensor state = fresh_statistics(logits.size(0), logits);
    softmax_statistics_op(state, logits, target, 0, options.label_smoothing != 0);
    const auto [losses, log_sum] = row_losses(state, kept, options.label_smoothing, logits.size(1));
    context->save_for_backward({logits, target, log_sum});
    context->saved_data["options"] = std::make_tuple(options.label_smoothing, options.ignore_index,
                                                     static_cast<int64_t>(options.reduction), options.overwrite_logits);
    return reduced_losses(losses, kept, options.reduction);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_order("softmax_cross_entropy");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &logits = saved[0], &target = saved[1], &log_sum = saved[2];
    const auto [smoothing, ignore_index, reduction, overwrite] =
        context->saved_data["options"].to<std::tuple<double, int64_t, int64_t, bool>>();
    const at::Tensor kept = target.ne(ignore_index);
    // The gradient of an ignored loss may be NaN.
    const at::Tensor scale = at::where(
        kept, row_scales(kept, log_sum, static_cast<Reduction>(reduction)) * gradients[0].to(log_sum.scalar_type()),
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
  check_classes(name, flat_target, flat_target.ne(options.ignore_index), classes);
  // The gradient has the layout of the rows, so rows must not share memory.
  const bool rows_lie_well = (flat.stride(1) == 1 || classes == 1) && (flat.stride(0) >= classes || flat.size(0) <= 1);
  CrossEntropyOptions own = options;
  own.overwrite_logits = options.overwrite_logits && rows_lie_well && !is_leaf_or_view_of_one(logits);
  const at::Tensor result = SoftmaxCrossEntropy::apply(rows_lie_well ? flat : flat.contiguous(), flat_target, own);
  return options.reduction == Reduction::none ? result.view(target.sizes()) : result;
}

// --- with the preceding linear layer

namespace {

struct LinearInputs {
  at::Tensor hidden, weight, bias, target;  ///< [N, H], [C, H], [C] or undefined, [N]
};

struct WantedGradients {
  bool hidden = false, weight = false, bias = false;
  bool any() const { return hidden || weight || bias; }
};

/// One pass over the rows that computes losses and gradients of the reduced loss.
class LinearCrossEntropyPass {
 public:
  LinearCrossEntropyPass(const LinearInputs& inputs, const LinearCrossEntropyOptions& options, WantedGradients wanted)
      : options_(options), wanted_(wanted), target_(inputs.target), kept_(inputs.target.ne(options.ignore_index)) {
    const at::ScalarType type = autocast_type(inputs.hidden).value_or(inputs.hidden.scalar_type());
    hidden_ = inputs.hidden.detach().to(type);
    weight_ = inputs.weight.detach().to(type);
    if (inputs.bias.defined()) bias_ = inputs.bias.detach().to(type);
    low_ = type == at::kBFloat16 || type == at::kHalf;
    rows_ = hidden_.size(0);
    classes_ = weight_.size(0);
    chunk_ =
        options.chunk > 0 ? options.chunk : automatic_chunk(classes_, static_cast<int64_t>(hidden_.element_size()));
    chunk_ = std::max<int64_t>(1, std::min(chunk_, rows_));
    vocabulary_chunk_ = options.vocabulary_chunk > 0 ? std::min(options.vocabulary_chunk, classes_) : classes_;
    buffer_ = at::empty({chunk_ * vocabulary_chunk_}, hidden_.options());
    const at::TensorOptions sums = hidden_.options().dtype(sum_type(hidden_));
    losses_ = at::empty({rows_}, sums);
    scales_ = row_scales(kept_, losses_, options.reduction);
    if (wanted.hidden) hidden_gradient = at::empty_like(hidden_, at::MemoryFormat::Contiguous);
    if (wanted.weight) weight_gradient = at::zeros(weight_.sizes(), sums);
    if (wanted.bias) bias_gradient = at::zeros({classes_}, sums);
  }

  at::Tensor run() {
    const WithoutAutocast plain(hidden_);
    for (int64_t row = 0; row < rows_; row += chunk_) run_rows(row, std::min(chunk_, rows_ - row));
    return reduced_losses(losses_, kept_, options_.reduction);
  }

  at::Tensor hidden_gradient, weight_gradient, bias_gradient;

 private:
  void run_rows(int64_t row, int64_t count) {
    const double s = options_.label_smoothing, off = s / static_cast<double>(classes_);
    const at::Tensor target = target_.narrow(0, row, count), state = fresh_statistics(count, hidden_);
    at::Tensor scores;
    for (int64_t first = 0; first < classes_; first += vocabulary_chunk_) {
      scores = scores_of(row, count, first);
      softmax_statistics_op(state, scores, target, first, s != 0);
    }
    const auto [losses, log_sum] = row_losses(state, kept_.narrow(0, row, count), s, classes_);
    losses_.narrow(0, row, count).copy_(losses);
    if (!wanted_.any()) return;
    for (int64_t first = 0; first < classes_; first += vocabulary_chunk_) {
      if (vocabulary_chunk_ < classes_) scores = scores_of(row, count, first);
      softmax_gradient_op(scores, scores, target, log_sum, scales_.narrow(0, row, count), first, 1 - s, off);
      add_gradients(scores, row, first);
    }
  }

  /// Logits [count, classes of this chunk], in the buffer.
  at::Tensor scores_of(int64_t row, int64_t count, int64_t first) {
    const int64_t classes = std::min(vocabulary_chunk_, classes_ - first);
    at::Tensor scores = buffer_.narrow(0, 0, count * classes).view({count, classes});
    const at::Tensor rows = hidden_.narrow(0, row, count), columns = weight_.narrow(0, first, classes).t();
    if (bias_.defined()) return at::addmm_out(scores, bias_.narrow(0, first, classes), rows, columns);
    return at::mm_out(scores, rows, columns);
  }

  /// Params: scores – overwritten by their gradient at this point
  void add_gradients(const at::Tensor& scores, int64_t row, int64_t first) {
    const int64_t count = scores.size(0), classes = scores.size(1);
    const at::Tensor rows = hidden_.narrow(0, row, count);
    if (wanted_.hidden) {
      at::Tensor gradient = hidden_gradient.narrow(0, row, count);
      const at::Tensor columns = weight_.narrow(0, first, classes);
      if (first == 0) {
        at::mm_out(gradient, scores, columns);
      } else {
        gradient.addmm_(scores, columns);
      }
    }
    if (wanted_.weight) add_weight_gradient(weight_gradient.narrow(0, first, classes), scores, rows);
    if (wanted_.bias) bias_gradient.narrow(0, first, classes).add_(scores.sum(0, false, losses_.scalar_type()));
  }

  void add_weight_gradient(const at::Tensor& gradient, const at::Tensor& scores, const at::Tensor& rows) const {
    if (!low_) {
      gradient.addmm_(scores.t(), rows);
      return;
    }
    // The bf16 result of a matrix multiplication is added to an fp32 sum. It needs its own memory, so this runs in
    // blocks of classes.
    constexpr int64_t block = 4096;
    for (int64_t at = 0; at < scores.size(1); at += block) {
      const int64_t classes = std::min(block, scores.size(1) - at);
      gradient.narrow(0, at, classes).add_(at::mm(scores.narrow(1, at, classes).t(), rows));
    }
  }

  LinearCrossEntropyOptions options_;
  WantedGradients wanted_;
  at::Tensor target_, kept_, hidden_, weight_, bias_, buffer_, losses_, scales_;
  int64_t rows_ = 0, classes_ = 0, chunk_ = 0, vocabulary_chunk_ = 0;
  bool low_ = false;
};

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  /// The bias is optional, because autograd asks undefined tensors for their device.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& target,
                            const LinearCrossEntropyOptions& options, WantedGradients wanted) {
    const at::Tensor b = bias.value_or(at::Tensor());
    LinearCrossEntropyPass pass({hidden, weight, b, target}, options, wanted);
    at::Tensor loss = pass.run();
    const auto keep = [&](const char* name, const at::Tensor& gradient, const at::Tensor& of) {
      context->saved_data[name] = gradient.defined() ? gradient.to(of.scalar_type()) : gradient;
    };
    keep("hidden", pass.hidden_gradient, hidden);
    keep("weight", pass.weight_gradient, weight);
    keep("bias", pass.bias_gradient, b);
    context->saved_data["has_bias"] = bias.has_value();
    return loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    constexpr const char* name = "linear_cross_entropy";
    refuse_second_order(name);
    auto& saved = context->saved_data;
    TORCH_CHECK_VALUE(saved.count("hidden"), name,
                      ": a second backward pass is not possible, because the first one used up the gradients that "
                      "forward computed. Call the function again.");
    const at::Tensor& given = gradients[0];
    // A factor of 1, as from loss.backward(), needs no multiplication. If the factor is pending, waiting for it would
    // cost more than multiplying.
    const bool one = given.is_cpu() && !tap::active_deferral() && given.item<double>() == 1;
    const auto take = [&](const char* key) {
      at::Tensor gradient = saved.at(key).toTensor();
      saved.erase(key);
      if (gradient.defined() && !one) gradient.mul_(given);
      return gradient;
    };
    at::Tensor hidden = take("hidden"), weight = take("weight"), bias = take("bias");
    return {hidden, weight, bias, {}, {}, {}};
  }
};

void check_linear(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) {
  constexpr const char* name = "linear_cross_entropy";
  TORCH_CHECK_VALUE(loss::has_kernels(hidden) && hidden.dim() >= 1, name,
                    ": expected hidden states [*, H] in Float, Double, BFloat16 or Half, got ", loss::describe(hidden),
                    ".");
  TORCH_CHECK_VALUE(weight.defined() && weight.dim() == 2 && weight.size(1) == hidden.size(-1) && weight.size(0) >= 1,
                    name, ": expected a weight [C, ", hidden.size(-1), "] for hidden states of ", hidden.sizes(),
                    ", got ", loss::describe(weight), ".");
  TORCH_CHECK_VALUE(!bias.defined() || bias.sizes() == weight.sizes().slice(0, 1), name, ": expected a bias [",
                    weight.size(0), "], got ", loss::describe(bias), ".");
  const bool cast = autocast_type(hidden).has_value();
  for (const at::Tensor* t : {&weight, &bias}) {
    if (!t->defined()) continue;
    TORCH_CHECK_VALUE(
        t->device() == hidden.device() && t->is_floating_point() && (cast || t->scalar_type() == hidden.scalar_type()),
        name, ": expected weight and bias with the dtype and device of the hidden states, ", hidden.scalar_type(),
        " on ", hidden.device(), ", got ", t->scalar_type(), " on ", t->device(), ".");
  }
}

}  // namespace

int64_t automatic_chunk(int64_t classes, int64_t score_bytes) {
  return std::max<int64_t>(16, (32 << 20) / (score_bytes * std::max<int64_t>(classes, 1)));
}

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                                const at::Tensor& target, const LinearCrossEntropyOptions& options) {
  constexpr const char* name = "linear_cross_entropy";
  loss::check_smoothing(name, options.label_smoothing);
  TORCH_CHECK_VALUE(options.reduction != Reduction::none, name,
                    ": expected the reduction mean or sum, got none. Forward computes the gradients before it receives "
                    "the gradients of the losses of the rows.");
  TORCH_CHECK_VALUE(options.chunk >= 0 && options.vocabulary_chunk >= 0, name,
                    ": expected chunks of at least 1, or 0 for automatic, got ", options.chunk, " and ",
                    options.vocabulary_chunk, ".");
  check_linear(hidden, weight, bias);
  loss::check_last_class_target(name, target, hidden);
  const at::Tensor rows = hidden.reshape({-1, hidden.size(-1)}), flat_target = target.reshape({-1}).contiguous();
  check_classes(name, flat_target, flat_target.ne(options.ignore_index), weight.size(0));
  const bool on = c10::GradMode::is_enabled();
  const WantedGradients wanted{on && hidden.requires_grad(), on && weight.requires_grad(),
                               on && bias.defined() && bias.requires_grad()};
  if (!wanted.any()) return LinearCrossEntropyPass({rows, weight, bias, flat_target}, options, wanted).run();
  return LinearCrossEntropy::apply(rows, weight, bias.defined() ? std::optional(bias) : std::nullopt, flat_target,
                                   options, wanted);
}

}  // namespace bellows::nn
