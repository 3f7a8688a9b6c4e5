#include "bellows/nn/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "bellows/kernels/cuda/available.h"
#include "bellows/nn/autocast_impl.h"
#include "bellows/nn/norm_check.h"
#include "bellows/nn/norm_op.h"

namespace bellows::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Properties of a norm other than its tensors.
struct NormKind {
  int64_t normalized_dims;
  double eps;
  bool center;
};

/// Gradients composed of operators that autograd can differentiate again.
variable_list composed_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                 const NormKind& kind, std::array<bool, 3> wanted) {
  const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<int64_t> inner(kind.normalized_dims), outer(x.dim() - kind.normalized_dims);
  std::iota(outer.begin(), outer.end(), 0);
  std::iota(inner.begin(), inner.end(), static_cast<int64_t>(outer.size()));
  const at::Tensor x_acc = x.to(type), dy_acc = dy.to(type);
  const at::Tensor centered = kind.center ? x_acc - x_acc.mean(inner, true) : x_acc;
  const at::Tensor rstd = (centered.square().mean(inner, true) + kind.eps).rsqrt();
  const at::Tensor xhat = centered * rstd, dxhat = weight.defined() ? dy_acc * weight : dy_acc;
  const auto over_rows = [&](const at::Tensor& t) { return outer.empty() ? t : t.sum(outer); };
  variable_list gradients(3);
  if (wanted[0]) {
    at::Tensor dx = dxhat - xhat * (dxhat * xhat).mean(inner, true);
    if (kind.center) dx = dx - dxhat.mean(inner, true);
    gradients[0] = (dx * rstd).to(x.scalar_type());
  }
  if (wanted[1]) gradients[1] = over_rows(dy_acc * xhat);
  if (wanted[2]) gradients[2] = over_rows(dy_acc);
  return gradients;
}

struct FusedNorm : torch::autograd::Function<FusedNorm> {
  /// Undefined tensors are passed as optional, because autograd asks them for their device.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, int64_t normalized_dims, double eps, bool center) {
    const at::Tensor w = weight.value_or(at::Tensor());
    const auto [y, mean, rstd] = norm_op(x, normalized_dims, w, bias.value_or(at::Tensor()), eps, center);
    context->save_for_backward({x, w, mean, rstd});
    context->saved_data["kind"] = std::make_tuple(normalized_dims, eps, center, bias.has_value());
    context->set_materialize_grads(false);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dy = gradients[0];
    const auto [normalized_dims, eps, center, has_bias] =
        context->saved_data["kind"].to<std::tuple<int64_t, double, bool, bool>>();
    variable_list result(6);
    if (!dy.defined()) return result;
    // needs_input_grad() counts only the tensors that are defined.
    const bool has_weight = weight.defined();
    const std::array<bool, 3> wanted = {context->needs_input_grad(0), has_weight && context->needs_input_grad(1),
                                        has_bias && context->needs_input_grad(has_weight ? 2 : 1)};
    // Gradients of weight and bias have the accumulation type; the autograd engine casts them to the parameters' dtype.
    if (c10::GradMode::is_enabled()) {
      const variable_list composed = composed_gradients(dy, x, weight, {normalized_dims, eps, center}, wanted);
      std::copy(composed.begin(), composed.end(), result.begin());
    } else {
      std::tie(result[0], result[1], result[2]) =
          norm_backward_op(dy, x, normalized_dims, weight, saved[2], saved[3], wanted);
    }
    return result;
  }
};

bool any_requires_grad(std::initializer_list<const at::Tensor*> tensors) {
  if (!c10::GradMode::is_enabled()) return false;
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor* t) { return t->defined() && t->requires_grad(); });
}

at::Tensor fused_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const NormKind& kind) {
  if (any_requires_grad({&x, &weight, &bias})) {
    const auto optional = [](const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; };
    return FusedNorm::apply(x, optional(weight), optional(bias), kind.normalized_dims, kind.eps, kind.center);
  }
  return std::get<0>(norm_op(x, kind.normalized_dims, weight, bias, kind.eps, kind.center));
}

void check_parameter(const char* function, const char* name, const at::Tensor& parameter, const at::Tensor& x,
                     at::IntArrayRef normalized_shape) {
  if (!parameter.defined()) return;
  TORCH_CHECK_VALUE(parameter.sizes() == normalized_shape, function, ": expected ", name, " of normalized_shape ",
                    normalized_shape, ", got ", parameter.sizes(), ".");
  TORCH_CHECK_VALUE(parameter.device() == x.device(), function, ": expected ", name, " on the input's device ",
                    x.device(), ", got ", parameter.device(), ". Move the module with to(device).");
  const bool low = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
  TORCH_CHECK_VALUE(parameter.scalar_type() == x.scalar_type() || (low && parameter.scalar_type() == at::kFloat),
                    function, ": expected ", name, " in the input's dtype ", x.scalar_type(), low ? " or in Float" : "",
                    ", got ", parameter.scalar_type(), ". Cast one of the two with to(dtype).");
}

}  // namespace

bool has_norm_kernel(const at::Tensor& x) {
  if (x.layout() != at::kStrided) return false;
  if (x.is_cpu() || x.is_meta()) return true;
  const bool low = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
  return x.is_cuda() && kernels::cuda::is_available() && !(low && autocast_type(x));
}

void check_norm(const char* function, const at::Tensor& x, at::IntArrayRef normalized_shape, const at::Tensor& weight,
                const at::Tensor& bias, double eps) {
  TORCH_CHECK_VALUE(x.defined(), function, ": expected an input, got an undefined tensor.");
  const at::ScalarType type = x.scalar_type();
  TORCH_CHECK_VALUE(type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf, function,
                    ": expected an input in Float, Double, BFloat16 or Half, got ", type, ".");
  const auto dims = static_cast<int64_t>(normalized_shape.size());
  TORCH_CHECK_VALUE(dims > 0 && x.dim() >= dims && x.sizes().slice(x.dim() - dims) == normalized_shape, function,
                    ": expected normalized_shape to be the last dims of the input, at least one, got ",
                    normalized_shape, " for an input of ", x.sizes(), ".");
  TORCH_CHECK_VALUE(eps > 0 && std::isfinite(eps), function, ": expected a finite eps above 0, got ", eps, ".");
  check_parameter(function, "weight", weight, x, normalized_shape);
  check_parameter(function, "bias", bias, x, normalized_shape);
}

at::Tensor layer_norm(const at::Tensor& x, at::IntArrayRef normalized_shape, const at::Tensor& weight,
                      const at::Tensor& bias, double eps) {
  check_norm("layer_norm", x, normalized_shape, weight, bias, eps);
  if (!has_norm_kernel(x)) return at::layer_norm(x, normalized_shape, weight, bias, eps);
  return fused_norm(x, weight, bias, {static_cast<int64_t>(normalized_shape.size()), eps, true});
}

at::Tensor rms_norm(const at::Tensor& x, at::IntArrayRef normalized_shape, const at::Tensor& weight,
                    std::optional<double> eps) {
  const bool is_double = x.defined() && x.scalar_type() == at::kDouble;
  const double value =
      eps.value_or(is_double ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon());
  check_norm("rms_norm", x, normalized_shape, weight, {}, value);
  if (!has_norm_kernel(x)) return at::rms_norm(x, normalized_shape, weight, eps);
  return fused_norm(x, weight, {}, {static_cast<int64_t>(normalized_shape.size()), value, false});
}

}  // namespace bellows::nn
