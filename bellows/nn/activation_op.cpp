#include "bellows/nn/activation_op.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/library.h>

#include "bellows/kernels/cuda/activation.h"
#include "bellows/kernels/cuda/available.h"
#include "bellows/nn/cuda_stream.h"

namespace bellows::nn {

namespace {

using kernels::Activation;
using MaybeTensor = std::optional<at::Tensor>;

const void* read_from(const MaybeTensor& tensor) {
  return tensor && tensor->defined() ? tensor->const_data_ptr() : nullptr;
}

void* write_to(const MaybeTensor& tensor) {
  return tensor && tensor->defined() ? tensor->mutable_data_ptr() : nullptr;
}

at::Tensor activation_strided(int64_t activation, const at::Tensor& x, const MaybeTensor& up) {
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (x.is_meta()) return y;
  const kernels::ActivationForward args = {.activation = static_cast<Activation>(activation),
                                           .dtype = x.scalar_type(),
                                           .count = x.numel(),
                                           .x = x.const_data_ptr(),
                                           .up = read_from(up),
                                           .y = y.mutable_data_ptr()};
  if (x.is_cuda()) {
    on_current_stream(x, [&](void* stream) { kernels::cuda::activation_forward(args, stream); });
  } else {
    kernels::activation_forward(args);
  }
  return y;
}

void activation_backward_strided(int64_t activation, const at::Tensor& dy, const at::Tensor& x, const MaybeTensor& up,
                                 const at::Tensor& dx, const MaybeTensor& dup, const MaybeTensor& y) {
  if (x.is_meta()) return;
  const kernels::ActivationBackward args = {.activation = static_cast<Activation>(activation),
                                            .dtype = x.scalar_type(),
                                            .count = x.numel(),
                                            .dy = dy.const_data_ptr(),
                                            .x = x.const_data_ptr(),
                                            .up = read_from(up),
                                            .dx = dx.mutable_data_ptr(),
                                            .dup = write_to(dup),
                                            .y = write_to(y)};
  if (!x.is_cuda()) return kernels::activation_backward(args);
  on_current_stream(x, [&](void* stream) { kernels::cuda::activation_backward(args, stream); });
}

const char* approximation(int64_t activation) {
  return static_cast<Activation>(activation) == Activation::gelu_tanh ? "tanh" : "none";
}

at::Tensor activation_composed(int64_t activation, const at::Tensor& x, const MaybeTensor& up) {
  if (static_cast<Activation>(activation) == Activation::swiglu) return at::silu(x) * *up;
  return at::gelu(x, approximation(activation));
}

void activation_backward_composed(int64_t activation, const at::Tensor& dy, const at::Tensor& x, const MaybeTensor& up,
                                  const at::Tensor& dx, const MaybeTensor& dup, const MaybeTensor& y) {
  if (y && y->defined()) y->copy_(activation_composed(activation, x, up));
  if (static_cast<Activation>(activation) == Activation::swiglu) {
    dup->copy_(dy * at::silu(x));
    dx.copy_(at::silu_backward(dy * *up, x));
  } else {
    dx.copy_(at::gelu_backward(dy, x, approximation(activation)));
  }
}

MaybeTensor maybe_tensor(const at::Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}

}  // namespace

// Registered in the source file that calls the operators, so that a static link includes the registration.
TORCH_LIBRARY_FRAGMENT(bellows, library) {
  library.def("activation(int activation, Tensor x, Tensor? up) -> Tensor", {at::Tag::pt2_compliant_tag});
  library.def(
      "activation_backward_(int activation, Tensor dy, Tensor x, Tensor? up, Tensor(a!) dx, Tensor(b!)? dup,"
      " Tensor(c!)? y) -> ()",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(bellows, CPU, library) {
  library.impl("activation", activation_strided);
  library.impl("activation_backward_", activation_backward_strided);
}

TORCH_LIBRARY_IMPL(bellows, CUDA, library) {
  if (!kernels::cuda::is_available()) return;  // libtorch's operators are used then
  library.impl("activation", activation_strided);
  library.impl("activation_backward_", activation_backward_strided);
}

TORCH_LIBRARY_IMPL(bellows, Meta, library) {
  library.impl("activation", activation_strided);
  library.impl("activation_backward_", activation_backward_strided);
}

TORCH_LIBRARY_IMPL(bellows, CompositeExplicitAutograd, library) {
  library.impl("activation", activation_composed);
  library.impl("activation_backward_", activation_backward_composed);
}

at::Tensor activation_op(kernels::Activation activation, const at::Tensor& x, const at::Tensor& up) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("bellows::activation", "").typed<decltype(activation_strided)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(static_cast<int64_t>(activation), x, maybe_tensor(up));
}

void activation_backward_op(kernels::Activation activation, const at::Tensor& dy, const at::Tensor& x,
                            const at::Tensor& up, const at::Tensor& dx, const at::Tensor& dup, const at::Tensor& y) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("bellows::activation_backward_", "")
                             .typed<decltype(activation_backward_strided)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  op.call(static_cast<int64_t>(activation), dy, x, maybe_tensor(up), dx, maybe_tensor(dup), maybe_tensor(y));
}

}  // namespace bellows::nn
