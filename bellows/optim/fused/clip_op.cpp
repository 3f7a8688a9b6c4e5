#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "bellows/kernels/cpu/grad_norm.h"
#include "bellows/optim/fused/clip_op.h"
#include "bellows/optim/fused/kernel_type.h"
#include "bellows/tap/deferral.h"

namespace bellows::optim {

namespace {

/// The element type for the kernels; empty if they cannot process the tensor's memory in one pass.
std::optional<kernels::Type> sweepable_type(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.is_non_overlapping_and_dense()) return std::nullopt;
  return kernel_type(tensor.scalar_type());
}

std::optional<kernels::NormSum> kernel_sum(double norm_type) {
  if (norm_type == 1) return kernels::NormSum::abs;
  if (norm_type == 2) return kernels::NormSum::squares;
  if (std::isinf(norm_type)) return kernels::NormSum::max_abs;
  return std::nullopt;
}

bool is_scaled_by_kernel(const at::Tensor& tensor) {
  const auto type = sweepable_type(tensor);
  return type == kernels::Type::f32 || type == kernels::Type::f64;
}

at::Tensor grad_norm_strided(at::TensorList tensors, double norm_type) {
  std::vector<kernels::NormTensor> inputs;
  inputs.reserve(tensors.size());
  bool wide = false;
  for (const at::Tensor& tensor : tensors) {
    const kernels::Type type = sweepable_type(tensor).value();
    wide = wide || type == kernels::Type::f64;
    inputs.push_back({tensor.numel(), tensor.const_data_ptr(), type});
  }
  const double sum = kernels::cpu::norm_sum(inputs, kernel_sum(norm_type).value());
  return at::scalar_tensor(norm_type == 2 ? std::sqrt(sum) : sum, at::dtype(wide ? at::kDouble : at::kFloat));
}

void scale_to_norm_strided(at::TensorList tensors, const at::Tensor& total_norm, double max_norm) {
  const double factor = max_norm / (total_norm.item<double>() + 1e-6);
  if (factor >= 1) return;  // false for NaN
  std::vector<kernels::ScaleTensor> ours;
  std::vector<at::Tensor> others;
  for (const at::Tensor& tensor : tensors) {
    if (is_scaled_by_kernel(tensor)) {
      ours.push_back({tensor.numel(), tensor.mutable_data_ptr(), *sweepable_type(tensor)});
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    } else {
      others.push_back(tensor);
    }
  }
  kernels::cpu::scale(ours, factor);
  if (!others.empty()) at::_foreach_mul_(others, at::Scalar(factor));
}

}  // namespace

// Registered in the source file that calls the operators, so that a static link includes the registration.
TORCH_LIBRARY_FRAGMENT(bellows, library) {
  library.def("grad_norm(Tensor[] tensors, float norm_type) -> Tensor", {at::Tag::pt2_compliant_tag});
  library.def("scale_to_norm_(Tensor(a!)[] tensors, Tensor total_norm, float max_norm) -> ()",
              {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(bellows, CPU, library) {
  library.impl("grad_norm", grad_norm_strided);
  library.impl("scale_to_norm_", scale_to_norm_strided);
}

at::Tensor norm_by_kernel(const std::vector<at::Tensor>& tensors, double norm_type) {
  const bool sweepable =
      std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return sweepable_type(tensor); });
  if (!sweepable || !kernel_sum(norm_type)) return {};
  if (!tap::active_deferral()) return grad_norm_strided(tensors, norm_type);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("bellows::grad_norm", "").typed<decltype(grad_norm_strided)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(tensors, norm_type);
}

void scale_on_cpu(const std::vector<at::Tensor>& tensors, const at::Tensor& total_norm, double max_norm) {
  if (!tap::active_deferral()) return scale_to_norm_strided(tensors, total_norm, max_norm);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("bellows::scale_to_norm_", "")
                             .typed<decltype(scale_to_norm_strided)>();
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  op.call(tensors, total_norm, max_norm);
}

}  // namespace bellows::optim
