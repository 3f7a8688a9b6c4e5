#include "bellows/nn/dropout_norm.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <mutex>

#include "bellows/nn/dropout_norm_op.h"
#include "bellows/nn/loss_check.h"
#include "bellows/nn/norm.h"
#include "bellows/nn/norm_check.h"

namespace bellows::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct DropoutAddNorm : torch::autograd::Function<DropoutAddNorm> {
  /// Rows [N, C]. Undefined tensors are passed as optional, because autograd asks them for their device.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& residual,
                               const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                               int64_t seed, const DropoutNormOptions& options) {
    const at::Tensor w = weight.value_or(at::Tensor());
    const auto [y, sum, mean, rstd] =
        dropout_norm_op(x, residual, w, bias.value_or(at::Tensor()), seed, options.p, options.eps, options.center);
    context->save_for_backward({sum, w, mean, rstd});
    context->saved_data["dropout"] = std::make_tuple(seed, options.p, bias.has_value());
    context->set_materialize_grads(false);
    return {y, sum};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK_VALUE(!c10::GradMode::is_enabled(),
                      "dropout_add_norm: double backward (create_graph) is not supported. Use at::dropout and "
                      "nn::layer_norm instead.");
    const variable_list saved = context->get_saved_variables();
    const auto [seed, p, has_bias] = context->saved_data["dropout"].to<std::tuple<int64_t, double, bool>>();
    variable_list result(6);
    if (!gradients[0].defined() && !gradients[1].defined()) return result;
    const at::Tensor dy = gradients[0].defined() ? gradients[0] : at::zeros_like(saved[0]);
    // needs_input_grad() counts only the tensors that are defined.
    const bool has_weight = saved[1].defined();
    const std::array<bool, 3> wanted = {context->needs_input_grad(0), has_weight && context->needs_input_grad(2),
                                        has_bias && context->needs_input_grad(has_weight ? 3 : 2)};
    std::tie(result[1], result[0], result[2], result[3]) =
        dropout_norm_backward_op(dy, gradients[1], saved[0], saved[1], saved[2], saved[3], seed, p, wanted);
    return result;
  }
};

int64_t drawn_seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return static_cast<int64_t>(at::check_generator<at::CPUGeneratorImpl>(generator)->random64());
}

at::Tensor composed_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const DropoutNormOptions& options) {
  const at::IntArrayRef shape = x.sizes().slice(x.dim() - 1);
  if (options.center) return layer_norm(x, shape, weight, bias, options.eps);
  return rms_norm(x, shape, weight, options.eps);
}

void check_dropout_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& bias,
                        const DropoutNormOptions& options) {
  constexpr const char* name = "dropout_add_norm";
  TORCH_CHECK_VALUE(x.defined() && x.is_floating_point() && x.dim() >= 1, name,
                    ": expected a floating-point input [*, C], got ", loss::describe(x), ".");
  TORCH_CHECK_VALUE(residual.defined() && residual.is_floating_point() && residual.sizes() == x.sizes() &&
                        residual.device() == x.device(),
                    name, ": expected a residual with the shape and device of the input, ", x.sizes(), " on ",
                    x.device(), ", got ", loss::describe(residual), ".");
  TORCH_CHECK_VALUE(options.p >= 0 && options.p < 1, name, ": expected p in [0, 1), got ", options.p, ".");
  TORCH_CHECK_VALUE(options.center || !bias.defined(), name, ": expected no bias for RMSNorm, got one.");
}

}  // namespace

std::pair<at::Tensor, at::Tensor> dropout_add_norm_sum(const at::Tensor& x, const at::Tensor& residual,
                                                       const at::Tensor& weight, const at::Tensor& bias,
                                                       const DropoutNormOptions& options) {
  check_dropout_norm(x, residual, bias, options);
  const bool drops = options.p > 0 && options.training;
  if (!drops || !has_norm_kernel(x)) {
    const at::Tensor sum = residual + (drops ? at::dropout(x, options.p, true) : x);
    return {composed_norm(sum, weight, bias, options), sum};
  }
  const at::ScalarType type = at::result_type(x, residual);
  const int64_t columns = x.size(-1);
  const auto rows = [&](const at::Tensor& t) { return t.to(type).reshape({-1, columns}); };
  check_norm("dropout_add_norm", rows(x), {columns}, weight, bias, options.eps);
  const auto optional = [](const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; };
  const variable_list result =
      DropoutAddNorm::apply(rows(x), rows(residual), optional(weight), optional(bias), drawn_seed(), options);
  return {result[0].view(x.sizes()), result[1].view(x.sizes())};
}

at::Tensor dropout_add_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                            const at::Tensor& bias, const DropoutNormOptions& options) {
  return dropout_add_norm_sum(x, residual, weight, bias, options).first;
}

}  // namespace bellows::nn
