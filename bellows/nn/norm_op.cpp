#include "bellows/nn/norm_op.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "bellows/kernels/cuda/available.h"
#include "bellows/kernels/cuda/layer_norm.h"
#include "bellows/kernels/layer_norm.h"
#include "bellows/nn/cuda_stream.h"

namespace bellows::nn {

namespace {

using MaybeTensor = std::optional<at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// How x is divided into rows.
struct NormRows {
  NormRows(const at::Tensor& x, int64_t normalized_dims) {
    for (int64_t dim = 0; dim < x.dim(); ++dim) (dim < x.dim() - normalized_dims ? rows : columns) *= x.size(dim);
    sum_type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  }
  int64_t rows = 1, columns = 1;
  at::ScalarType sum_type;
};

at::Tensor as_sum_type(const MaybeTensor& parameter, const NormRows& shape) {
  return parameter && parameter->defined() ? parameter->to(shape.sum_type).contiguous() : at::Tensor();
}

const void* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.const_data_ptr() : nullptr;
}

void* mutable_data_or_null(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.mutable_data_ptr() : nullptr;
}

/// For the CPU and CUDA; for the meta device, computes only the shapes.
ThreeTensors norm_strided(const at::Tensor& x, int64_t normalized_dims, const MaybeTensor& weight,
                          const MaybeTensor& bias, double eps, bool center) {
  const NormRows shape(x, normalized_dims);
  const at::Tensor input = x.contiguous(), w = as_sum_type(weight, shape), b = as_sum_type(bias, shape);
  at::Tensor y = at::empty(x.sizes(), x.options());
  at::Tensor mean = at::empty({center ? shape.rows : 0}, x.options().dtype(shape.sum_type));
  at::Tensor rstd = at::empty({shape.rows}, mean.options());
  if (x.is_meta()) return {y, mean, rstd};
  const kernels::NormForward args = {.dtype = x.scalar_type(),
                                     .rows = shape.rows,
                                     .columns = shape.columns,
                                     .eps = eps,
                                     .x = data_or_null(input),
                                     .weight = data_or_null(w),
                                     .bias = data_or_null(b),
                                     .y = mutable_data_or_null(y),
                                     .mean = mutable_data_or_null(mean),
                                     .rstd = mutable_data_or_null(rstd)};
  if (x.is_cuda()) {
    on_current_stream(x, [&](void* stream) { kernels::cuda::norm_forward(args, stream); });
  } else {
    kernels::norm_forward(args);
  }
  return {y, mean, rstd};
}

ThreeTensors norm_backward_strided(const at::Tensor& dy, const at::Tensor& x, int64_t normalized_dims,
                                   const MaybeTensor& weight, const at::Tensor& mean, const at::Tensor& rstd,
                                   std::array<bool, 3> wanted) {
  const NormRows shape(x, normalized_dims);
  const at::Tensor input = x.contiguous(), gradient = dy.contiguous(), w = as_sum_type(weight, shape);
  const auto parameter = [&](bool on) {
    return on ? at::empty(x.sizes().slice(x.dim() - normalized_dims), rstd.options()) : at::Tensor();
  };
  at::Tensor dx = wanted[0] ? at::empty(x.sizes(), x.options()) : at::Tensor();
  at::Tensor dweight = parameter(wanted[1]), dbias = parameter(wanted[2]);
  if (x.is_meta()) return {dx, dweight, dbias};
  const kernels::NormBackward args = {.dtype = x.scalar_type(),
                                      .rows = shape.rows,
                                      .columns = shape.columns,
                                      .dy = data_or_null(gradient),
                                      .x = data_or_null(input),
                                      .weight = data_or_null(w),
                                      .mean = data_or_null(mean),
                                      .rstd = data_or_null(rstd),
                                      .dx = mutable_data_or_null(dx),
                                      .dweight = mutable_data_or_null(dweight),
                                      .dbias = mutable_data_or_null(dbias)};
  if (x.is_cuda()) {
    const at::Tensor workspace = at::empty({kernels::cuda::norm_workspace(shape.rows, shape.columns)}, rstd.options());
    on_current_stream(
        x, [&](void* stream) { kernels::cuda::norm_backward(args, mutable_data_or_null(workspace), stream); });
  } else {
    kernels::norm_backward(args);
  }
  return {dx, dweight, dbias};
}

}  // namespace

// Registered in the source file that calls the operators, so that a static link includes the registration.
TORCH_LIBRARY_FRAGMENT(bellows, library) {
  library.def(
      "norm(Tensor x, int normalized_dims, Tensor? weight, Tensor? bias, float eps, bool center)"
      " -> (Tensor y, Tensor mean, Tensor rstd)",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "norm_backward(Tensor dy, Tensor x, int normalized_dims, Tensor? weight, Tensor mean, Tensor rstd,"
      " bool[3] wanted) -> (Tensor dx, Tensor dweight, Tensor dbias)",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(bellows, CPU, library) {
  library.impl("norm", norm_strided);
  library.impl("norm_backward", norm_backward_strided);
}

TORCH_LIBRARY_IMPL(bellows, CUDA, library) {
  if (!kernels::cuda::is_available()) return;
  library.impl("norm", norm_strided);
  library.impl("norm_backward", norm_backward_strided);
}

TORCH_LIBRARY_IMPL(bellows, Meta, library) {
  library.impl("norm", norm_strided);
  library.impl("norm_backward", norm_backward_strided);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_op(const at::Tensor& x, int64_t normalized_dims,
                                                       const at::Tensor& weight, const at::Tensor& bias, double eps,
                                                       bool center) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("bellows::norm", "").typed<decltype(norm_strided)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, normalized_dims, weight, bias, eps, center);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward_op(const at::Tensor& dy, const at::Tensor& x,
                                                                int64_t normalized_dims, const at::Tensor& weight,
                                                                const at::Tensor& mean, const at::Tensor& rstd,
                                                                std::array<bool, 3> wanted) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("bellows::norm_backward", "")
                             .typed<decltype(norm_backward_strided)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(dy, x, normalized_dims, weight, mean, rstd, wanted);
}

}  // namespace bellows::nn
