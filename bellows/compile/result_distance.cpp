#include "bellows/compile/result_distance.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace bellows::compile_detail {
namespace {

at::Tensor over(const c10::Storage& storage, const caffe2::TypeMeta& dtype, int64_t offset, at::IntArrayRef sizes,
                at::IntArrayRef strides) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions(storage.device()).dtype(dtype));
  return tensor.set_(storage, offset, sizes, strides);
}

/// All elements of a buffer.
at::Tensor flat(const c10::Storage& storage, const caffe2::TypeMeta& dtype) {
  return over(storage, dtype, 0, {static_cast<int64_t>(storage.nbytes() / dtype.itemsize())}, {1});
}

/// Elements as double, in order. Integers above 2^53 are rounded.
at::Tensor numbers_of(const at::Tensor& tensor) {
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
  return real.cpu().to(at::kDouble).contiguous();
}

/// A number in [-1, 1) that depends only on the position.
double direction(uint64_t position) {
  uint64_t bits = (position + 1) * 0x9E3779B97F4A7C15u;
  bits = (bits ^ (bits >> 31)) * 0xBF58476D1CE4E5B9u;
  return static_cast<double>(bits >> 11) * 0x1p-52 - 1;
}

/// Relative distance between neighboring numbers.
double spacing(c10::ScalarType type) {
  return type == at::kBFloat16 ? 0x1p-7 : type == at::kHalf ? 0x1p-10 : type == at::kDouble ? 0x1p-52 : 0x1p-23;
}

}  // namespace

std::vector<at::Tensor> results_of(const graph::Program& program, std::span<const c10::Storage> inputs,
                                   std::span<const c10::Storage> outputs) {
  const c10::InferenceMode inference;
  std::vector<at::Tensor> results;
  results.reserve(program.outputs.size());
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const graph::Program::Output& output = program.outputs[i];
    if (output.input >= 0) {
      const graph::Geometry& geometry = program.values[program.inputs[output.input]].geometry;
      results.push_back(inputs[output.input] ? flat(inputs[output.input], geometry.dtype) : at::Tensor());
    } else {
      const graph::Geometry& geometry = program.values[output.value].geometry;
      results.push_back(outputs[i] ? over(outputs[i], geometry.dtype, geometry.offset, geometry.sizes, geometry.strides)
                                   : at::Tensor());
    }
  }
  return results;
}

Distance Distance::between(const at::Tensor& expected, const at::Tensor& got) {
  TORCH_CHECK(expected.sizes() == got.sizes() && expected.dtype() == got.dtype(), "expected ", expected.dtype(),
              expected.sizes(), ", got ", got.dtype(), got.sizes());
  const c10::InferenceMode inference;
  const at::Tensor first = numbers_of(expected), second = numbers_of(got);
  const auto* const a = first.const_data_ptr<double>();
  const auto* const b = second.const_data_ptr<double>();
  Distance result;
  for (int64_t i = 0; i < first.numel(); ++i) {
    if (std::isfinite(a[i])) result.scale = std::max(result.scale, std::abs(a[i]));
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    ++result.elements;
    const double difference = std::abs(a[i] - b[i]);
    result.largest =
        std::max(result.largest, std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference);
  }
  return result;
}

void disturb(const graph::Program& program, std::span<const c10::Storage> inputs, double share) {
  const c10::InferenceMode inference;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const caffe2::TypeMeta dtype = program.values[program.inputs[i]].geometry.dtype;
    if (!inputs[i] || !c10::isFloatingType(dtype.toScalarType())) continue;
    at::Tensor elements = flat(inputs[i], dtype), numbers = elements.to(at::kDouble);
    auto* const data = numbers.mutable_data_ptr<double>();
    const double reach = std::max(share, spacing(dtype.toScalarType()));
    for (int64_t at = 0; at < numbers.numel(); ++at)
      data[at] *= 1 + reach * direction(static_cast<uint64_t>(at) + (static_cast<uint64_t>(i) << 40));
    elements.copy_(numbers);
  }
}

}  // namespace bellows::compile_detail
