#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "bellows/nn/autocast_impl.h"
#include "bellows/nn/cross_entropy.h"
#include "bellows/nn/cross_entropy_impl.h"
#include "bellows/nn/loss_check.h"
#include "bellows/nn/softmax_op.h"
#include "bellows/tap/deferral.h"

namespace bellows::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LinearInputs {
  at::Tensor hidden, weight, bias, target;  ///< [N, H], [C, H], [C] or undefined, [N]
};

struct WantedGradients {
  bool hidden = false, weight = false, bias = false;
  bool any() const { return hidden || weight || bias; }
};

/// One pass over the rows: losses, and gradients of the reduced loss.
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
    const at::TensorOptions sums = hidden_.options().dtype(loss::sum_type(hidden_));
    losses_ = at::empty({rows_}, sums);
    scales_ = loss::row_scales(kept_, losses_, options.reduction);
    if (wanted.hidden) hidden_gradient = at::empty_like(hidden_, at::MemoryFormat::Contiguous);
    if (wanted.weight) weight_gradient = at::zeros(weight_.sizes(), sums);
    if (wanted.bias) bias_gradient = at::zeros({classes_}, sums);
  }

  at::Tensor run() {
    const WithoutAutocast plain(hidden_);
    for (int64_t row = 0; row < rows_; row += chunk_) run_rows(row, std::min(chunk_, rows_ - row));
    return loss::reduced_losses(losses_, kept_, options_.reduction);
  }

  at::Tensor hidden_gradient, weight_gradient, bias_gradient;

 private:
  void run_rows(int64_t row, int64_t count) {
    const double s = options_.label_smoothing, off = s / static_cast<double>(classes_);
    const at::Tensor target = target_.narrow(0, row, count), state = loss::fresh_statistics(count, hidden_);
    at::Tensor scores;
    for (int64_t first = 0; first < classes_; first += vocabulary_chunk_) {
      scores = scores_of(row, count, first);
      softmax_statistics_op(state, scores, target, first, s != 0);
    }
    const auto [losses, log_sum] = loss::row_losses(state, kept_.narrow(0, row, count), s, classes_);
    losses_.narrow(0, row, count).copy_(losses);
    if (!wanted_.any()) return;
    for (int64_t first = 0; first < classes_; first += vocabulary_chunk_) {
      if (vocabulary_chunk_ < classes_) scores = scores_of(row, count, first);
      softmax_gradient_op(scores, scores, target, log_sum, scales_.narrow(0, row, count), first, 1 - s, off);
      add_gradients(scores, row, first);
    }
  }

  /// [count, classes of this chunk], in the buffer.
  at::Tensor scores_of(int64_t row, int64_t count, int64_t first) {
    const int64_t classes = std::min(vocabulary_chunk_, classes_ - first);
    at::Tensor scores = buffer_.narrow(0, 0, count * classes).view({count, classes});
    const at::Tensor rows = hidden_.narrow(0, row, count), columns = weight_.narrow(0, first, classes).t();
    if (bias_.defined()) return at::addmm_out(scores, bias_.narrow(0, first, classes), rows, columns);
    return at::mm_out(scores, rows, columns);
  }

  /// Params: scores – by now their gradient
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
    // A product in bf16 is added to a sum in fp32: some classes at a time, as it needs memory of its own.
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
  /// Takes an optional bias: autograd asks undefined tensors for their device.
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
    loss::refuse_second_order(name);
    auto& saved = context->saved_data;
    TORCH_CHECK_VALUE(saved.count("hidden"), name,
                      ": a second backward pass: the gradients were computed in forward and handed over by the first. "
                      "Call it again for another.");
    const at::Tensor& given = gradients[0];
    // A factor of 1, as loss.backward() gives, costs nothing; where it has no value yet, waiting for it would cost more.
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
        name, ": expected weight and bias as the hidden states, ", hidden.scalar_type(), " on ", hidden.device(),
        ", got ", t->scalar_type(), " on ", t->device(), ".");
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
                    ": expected the reduction mean or sum, got none: gradients are computed before a backward pass "
                    "could weigh the rows.");
  TORCH_CHECK_VALUE(options.chunk >= 0 && options.vocabulary_chunk >= 0, name,
                    ": expected chunks of at least 1, or 0 for automatic, got ", options.chunk, " and ",
                    options.vocabulary_chunk, ".");
  check_linear(hidden, weight, bias);
  loss::check_last_class_target(name, target, hidden);
  const at::Tensor rows = hidden.reshape({-1, hidden.size(-1)}), flat_target = target.reshape({-1}).contiguous();
  loss::check_classes(name, flat_target, flat_target.ne(options.ignore_index), weight.size(0));
  const bool on = c10::GradMode::is_enabled();
  const WantedGradients wanted{on && hidden.requires_grad(), on && weight.requires_grad(),
                               on && bias.defined() && bias.requires_grad()};
  if (!wanted.any()) return LinearCrossEntropyPass({rows, weight, bias, flat_target}, options, wanted).run();
  return LinearCrossEntropy::apply(rows, weight, bias.defined() ? std::optional(bias) : std::nullopt, flat_target,
                                   options, wanted);
}

}  // namespace bellows::nn
