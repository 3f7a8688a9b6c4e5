#include "bellows/quant/training/range_operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <limits>
#include <tuple>

namespace bellows::quant {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

constexpr double least_step = std::numeric_limits<float>::epsilon();
constexpr Scheme uint8_affine{}, uint8_symmetric{.symmetric = true};

void check_range(const at::Tensor& range) {
  TORCH_CHECK_VALUE(range.scalar_type() == at::kFloat && range.dim() == 1 && range.size(0) == 2,
                    "quantization-aware training: expected a range of two fp32 numbers, got ",
                    c10::toString(range.scalar_type()), " ", range.sizes(), ".");
}

at::Tensor moving_range_kernel(const at::Tensor& range, const at::Tensor& x, double weight) {
  check_range(range);
  const auto [low, high] = x.to(at::kFloat).aminmax();
  const at::Tensor batch = at::stack({low, high});
  return at::where(at::isinf(range), batch, range + weight * (batch - range));
}

TwoTensors range_parameters_kernel(const at::Tensor& range, bool centered) {
  check_range(range);
  const at::Tensor low = range.select(0, 0), high = range.select(0, 1);
  const Parameters made = unchecked_parameters(low, high, uint8_affine);
  if (!centered) return {made.scale, made.zero_point};
  const Parameters middle = unchecked_parameters(low, high, uint8_symmetric);
  const at::Tensor negative = low < 0;
  return {at::where(negative, middle.scale, made.scale), at::where(negative, middle.zero_point, made.zero_point)};
}

TwoTensors row_parameters_kernel(const at::Tensor& weight, double half_range) {
  TORCH_CHECK_VALUE(weight.is_floating_point() && weight.dim() > 0 && weight.numel() > 0,
                    "quantization-aware training: expected a floating-point weight with rows, got ",
                    c10::toString(weight.scalar_type()), " ", weight.sizes(), ".");
  const auto [low, high] = weight.to(at::kFloat).reshape({weight.size(0), -1}).aminmax(1);
  const at::Tensor largest = at::maximum(-low.clamp_max(0), high.clamp_min(0));
  const at::Tensor scale = (largest / half_range).clamp_min(least_step);
  return {scale, at::zeros_like(scale, at::kInt)};
}

template <class Kernel>
auto registered(const char* name, Kernel*) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Kernel>();
}

Parameters parameters_of(TwoTensors made) {
  return {.scale = std::move(std::get<0>(made)), .zero_point = std::move(std::get<1>(made))};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(bellows, library) {
  library.def("moving_range(Tensor range, Tensor x, float weight) -> Tensor", {at::Tag::pt2_compliant_tag});
  library.def("range_parameters(Tensor range, bool centered) -> (Tensor, Tensor)", {at::Tag::pt2_compliant_tag});
  library.def("row_parameters(Tensor weight, float half_range) -> (Tensor, Tensor)", {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(bellows, CompositeExplicitAutograd, library) {
  library.impl("moving_range", moving_range_kernel);
  library.impl("range_parameters", range_parameters_kernel);
  library.impl("row_parameters", row_parameters_kernel);
}

at::Tensor moving_range(const at::Tensor& range, const at::Tensor& x, double weight) {
  static const auto op = registered("bellows::moving_range", moving_range_kernel);
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(range, x, weight);
}

Parameters range_parameters(const at::Tensor& range, bool centered) {
  static const auto op = registered("bellows::range_parameters", range_parameters_kernel);
  const at::AutoDispatchBelowADInplaceOrView below;
  return parameters_of(op.call(range, centered));
}

Parameters row_parameters(const at::Tensor& weight, double half_range) {
  static const auto op = registered("bellows::row_parameters", row_parameters_kernel);
  const at::AutoDispatchBelowADInplaceOrView below;
  return parameters_of(op.call(weight, half_range));
}

}  // namespace bellows::quant
