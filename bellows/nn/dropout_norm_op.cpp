#include "bellows/nn/dropout_norm_op.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "bellows/kernels/cuda/available.h"
#include "bellows/kernels/cuda/layer_norm.h"
#include "bellows/kernels/dropout_norm.h"
#include "bellows/nn/cuda_stream.h"

namespace bellows::nn {

namespace {

using MaybeTensor = std::optional<at::Tensor>;
using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

MaybeTensor some(const at::Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}

const void* const_data_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.const_data_ptr() : nullptr;
}

void* data_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.mutable_data_ptr() : nullptr;
}

at::Tensor summable(const MaybeTensor& parameter, at::ScalarType type) {
  return parameter && parameter->defined() ? parameter->to(type).contiguous() : at::Tensor();
}

FourTensors dropout_norm_strided(const at::Tensor& x, const at::Tensor& residual, const MaybeTensor& weight,
                                 const MaybeTensor& bias, int64_t seed, double p, double eps, bool center) {
  const at::ScalarType sums = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor input = x.contiguous(), added = residual.contiguous();
  const at::Tensor w = summable(weight, sums), b = summable(bias, sums);
  at::Tensor y = at::empty(x.sizes(), x.options()), sum = at::empty(x.sizes(), x.options());
  at::Tensor mean = at::empty({center ? x.size(0) : 0}, x.options().dtype(sums));
  at::Tensor rstd = at::empty({x.size(0)}, mean.options());
  if (x.is_meta()) return {y, sum, mean, rstd};
  const kernels::DropoutNormForward args = {.norm = {.dtype = x.scalar_type(),
                                                     .rows = x.size(0),
                                                     .columns = x.size(1),
                                                     .eps = eps,
                                                     .weight = const_data_of(w),
                                                     .bias = const_data_of(b),
                                                     .y = data_of(y),
                                                     .mean = data_of(mean),
                                                     .rstd = data_of(rstd)},
                                            .dropout = {static_cast<uint64_t>(seed), p},
                                            .x = const_data_of(input),
                                            .residual = const_data_of(added),
                                            .sum = data_of(sum)};
  if (x.is_cuda()) {
    on_current_stream(x, [&](void* stream) { kernels::cuda::dropout_norm_forward(args, stream); });
  } else {
    kernels::dropout_norm_forward(args);
  }
  return {y, sum, mean, rstd};
}

FourTensors dropout_norm_backward_strided(const at::Tensor& dy, const MaybeTensor& dsum, const at::Tensor& sum,
                                          const MaybeTensor& weight, const at::Tensor& mean, const at::Tensor& rstd,
                                          int64_t seed, double p, std::array<bool, 3> wanted) {
  const at::Tensor gradient = dy.contiguous(), input = sum.contiguous(), w = summable(weight, rstd.scalar_type());
  const at::Tensor own = dsum && dsum->defined() ? dsum->contiguous() : at::Tensor();
  const auto parameter = [&](bool on) { return on ? at::empty({sum.size(1)}, rstd.options()) : at::Tensor(); };
  at::Tensor dresidual = at::empty(sum.sizes(), sum.options());
  at::Tensor dx = wanted[0] ? at::empty(sum.sizes(), sum.options()) : at::Tensor();
  at::Tensor dweight = parameter(wanted[1]), dbias = parameter(wanted[2]);
  if (sum.is_meta()) return {dresidual, dx, dweight, dbias};
  const kernels::DropoutNormBackward args = {.norm = {.dtype = sum.scalar_type(),
                                                      .rows = sum.size(0),
                                                      .columns = sum.size(1),
                                                      .dy = const_data_of(gradient),
                                                      .x = const_data_of(input),
                                                      .weight = const_data_of(w),
                                                      .mean = const_data_of(mean),
                                                      .rstd = const_data_of(rstd),
                                                      .dx = data_of(dresidual),
                                                      .dweight = data_of(dweight),
                                                      .dbias = data_of(dbias)},
                                             .dropout = {static_cast<uint64_t>(seed), p},
                                             .dsum = const_data_of(own),
                                             .dx = data_of(dx)};
  if (sum.is_cuda()) {
    const at::Tensor workspace = at::empty({kernels::cuda::norm_workspace(sum.size(0), sum.size(1))}, rstd.options());
    on_current_stream(sum,
                      [&](void* stream) { kernels::cuda::dropout_norm_backward(args, data_of(workspace), stream); });
  } else {
    kernels::dropout_norm_backward(args);
  }
  return {dresidual, dx, dweight, dbias};
}

}  // namespace

// Registered in the source file that calls the operators, so that a static link includes the registration.
TORCH_LIBRARY_FRAGMENT(bellows, library) {
  library.def(
      "dropout_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, int seed, float p, float eps, bool center)"
      " -> (Tensor y, Tensor sum, Tensor mean, Tensor rstd)",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "dropout_norm_backward(Tensor dy, Tensor? dsum, Tensor sum, Tensor? weight, Tensor mean, Tensor rstd, int seed,"
      " float p, bool[3] wanted) -> (Tensor dresidual, Tensor dx, Tensor dweight, Tensor dbias)",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(bellows, CPU, library) {
  library.impl("dropout_norm", dropout_norm_strided);
  library.impl("dropout_norm_backward", dropout_norm_backward_strided);
}

TORCH_LIBRARY_IMPL(bellows, CUDA, library) {
  if (!kernels::cuda::is_available()) return;
  library.impl("dropout_norm", dropout_norm_strided);
  library.impl("dropout_norm_backward", dropout_norm_backward_strided);
}

TORCH_LIBRARY_IMPL(bellows, Meta, library) {
  library.impl("dropout_norm", dropout_norm_strided);
  library.impl("dropout_norm_backward", dropout_norm_backward_strided);
}

FourTensors dropout_norm_op(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                            const at::Tensor& bias, int64_t seed, double p, double eps, bool center) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("bellows::dropout_norm", "")
                             .typed<decltype(dropout_norm_strided)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, residual, some(weight), some(bias), seed, p, eps, center);
}

FourTensors dropout_norm_backward_op(const at::Tensor& dy, const at::Tensor& dsum, const at::Tensor& sum,
                                     const at::Tensor& weight, const at::Tensor& mean, const at::Tensor& rstd,
                                     int64_t seed, double p, std::array<bool, 3> wanted) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("bellows::dropout_norm_backward", "")
                             .typed<decltype(dropout_norm_backward_strided)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(dy, some(dsum), sum, some(weight), mean, rstd, seed, p, wanted);
}

}  // namespace bellows::nn
