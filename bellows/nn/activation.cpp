#include "bellows/nn/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "bellows/nn/activation_op.h"
#include "bellows/nn/autocast_impl.h"
#include "bellows/nn/loss_check.h"

namespace bellows::nn {

namespace {

using kernels::Activation;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor activate_composed(Activation activation, const at::Tensor& x, const at::Tensor& up) {
  if (activation == Activation::swiglu) return at::silu(x) * up;
  return at::gelu(x, activation == Activation::gelu_tanh ? "tanh" : "none");
}

/// Views of the inputs. Gradients with respect to these views stop there, even if one input was computed from another.
variable_list views_of(const variable_list& inputs) {
  variable_list views;
  views.reserve(inputs.size());
  for (const at::Tensor& input : inputs) views.push_back(input.defined() ? input.view_as(input) : input);
  return views;
}

/// Differentiable gradients of `y` with respect to `inputs`, which are the views_of() from which it was computed.
variable_list recorded_gradients(const at::Tensor& y, const variable_list& inputs, const at::Tensor& dy) {
  variable_list wanted, result(inputs.size());
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) wanted.push_back(input);
  }
  const variable_list found = torch::autograd::grad({y}, wanted, {dy}, /*retain_graph=*/true, /*create_graph=*/true);
  for (size_t i = 0, next = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && inputs[i].requires_grad()) result[i] = found[next++];
  }
  return result;
}

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return activation_op(Activation::swiglu, gate.contiguous(), up.contiguous());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    if (c10::GradMode::is_enabled()) {
      const variable_list own = views_of(saved);
      return recorded_gradients(activate_composed(Activation::swiglu, own[0], own[1]), own, gradients[0]);
    }
    const at::Tensor gate = saved[0].contiguous(), up = saved[1].contiguous();
    at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(gate);
    activation_backward_op(Activation::swiglu, gradients[0].contiguous(), gate, up, dgate, dup, {});
    return {dgate, dup};
  }
};

/// x is [N, K], the output [N, M]. Undefined tensors are passed as optional, because autograd asks them for their
/// device.
struct ActivatedLinear : torch::autograd::Function<ActivatedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& up,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias, int64_t activation) {
    const WithoutAutocast plain(x);
    const at::Tensor factor = up.value_or(at::Tensor());
    context->save_for_backward({x, factor, weight, bias.value_or(at::Tensor())});
    context->saved_data["activation"] = activation;
    const at::Tensor inner = activation_op(static_cast<Activation>(activation), x.contiguous(),
                                           factor.defined() ? factor.contiguous() : factor);
    return at::linear(inner, weight, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    const at::Tensor &x = saved[0], &up = saved[1], &weight = saved[2], &bias = saved[3], &dy = gradients[0];
    const WithoutAutocast plain(x);
    if (c10::GradMode::is_enabled()) {
      const variable_list own = views_of(saved);
      const auto with = bias.defined() ? std::optional(own[3]) : std::nullopt;
      variable_list result =
          recorded_gradients(at::linear(activate_composed(activation, own[0], own[1]), own[2], with), own, dy);
      result.resize(5);
      return result;
    }
    const at::Tensor inputs = x.contiguous(), factors = up.defined() ? up.contiguous() : up;
    at::Tensor dx = at::mm(dy, weight), dup = up.defined() ? at::empty_like(inputs) : at::Tensor();
    const at::Tensor inner = weight.requires_grad() ? at::empty_like(inputs) : at::Tensor();
    activation_backward_op(activation, dx, inputs, factors, dx, dup, inner);
    return {dx,
            dup,
            inner.defined() ? at::mm(dy.t(), inner) : inner,
            bias.defined() && bias.requires_grad() ? dy.sum(0) : at::Tensor(),
            {}};
  }
};

void check_same(const char* function, const at::Tensor& gate, const at::Tensor& up) {
  TORCH_CHECK_VALUE(loss::has_kernels(gate), function,
                    ": expected a gate of type Float, Double, BFloat16 or Half, got ", loss::describe(gate), ".");
  TORCH_CHECK_VALUE(up.defined() && up.sizes() == gate.sizes() && up.scalar_type() == gate.scalar_type() &&
                        up.device() == gate.device(),
                    function, ": expected `up` with the shape, dtype and device of the gate, ", loss::describe(gate),
                    " on ", gate.device(), ", got ", loss::describe(up), ".");
}

at::Tensor activated_linear(const char* function, Activation activation, const at::Tensor& x, const at::Tensor& up,
                            const at::Tensor& weight, const at::Tensor& bias) {
  TORCH_CHECK_VALUE(loss::has_kernels(x) && x.dim() >= 1, function,
                    ": expected an input [*, K] in Float, Double, BFloat16 or Half, got ", loss::describe(x), ".");
  TORCH_CHECK_VALUE(weight.defined() && weight.dim() == 2 && weight.size(1) == x.size(-1), function,
                    ": expected a weight [M, ", x.size(-1), "] for an input of ", x.sizes(), ", got ",
                    loss::describe(weight), ".");
  TORCH_CHECK_VALUE(!bias.defined() || bias.sizes() == weight.sizes().slice(0, 1), function, ": expected a bias [",
                    weight.size(0), "], got ", loss::describe(bias), ".");
  const auto cast_to = autocast_type(x);
  const auto cast = [&](const at::Tensor& t) { return cast_to && t.defined() ? t.to(*cast_to) : t; };
  const auto flat = [&](const at::Tensor& t) { return t.defined() ? cast(t).reshape({-1, x.size(-1)}) : t; };
  const at::Tensor rows = flat(x), w = cast(weight), b = cast(bias);
  TORCH_CHECK_VALUE(w.scalar_type() == rows.scalar_type() && w.device() == rows.device(), function,
                    ": expected a weight with the dtype and device of the input, ", rows.scalar_type(), " on ",
                    rows.device(), ", got ", w.scalar_type(), " on ", w.device(), ".");
  const auto optional = [](const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; };
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return ActivatedLinear::apply(rows, optional(flat(up)), w, optional(b), static_cast<int64_t>(activation)).view(shape);
}

}  // namespace

at::Tensor gelu_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const GeluOptions& options) {
  return activated_linear("gelu_linear", options.tanh ? Activation::gelu_tanh : Activation::gelu, x, {}, weight, bias);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  check_same("swiglu", gate, up);
  return Swiglu::apply(gate, up);
}

at::Tensor swiglu_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                         const at::Tensor& bias) {
  check_same("swiglu_linear", gate, up);
  return activated_linear("swiglu_linear", Activation::swiglu, gate, up, weight, bias);
}

}  // namespace bellows::nn
