#include "bellows/compile/result_distance.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "bellows/graph/execution/program_runner.h"
#include "bellows/tap/op_tap.h"

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

void disturb(const at::Tensor& tensor, double share, uint64_t seed) {
  if (!tensor.defined() || !tensor.is_floating_point() || !tensor.is_non_overlapping_and_dense()) return;
  const c10::InferenceMode inference;
  at::Tensor numbers = tensor.to(at::kDouble).contiguous();
  auto* const data = numbers.mutable_data_ptr<double>();
  const double reach = std::max(share, spacing(tensor.scalar_type()));
  for (int64_t at = 0; at < numbers.numel(); ++at)
    data[at] *= 1 + reach * direction(static_cast<uint64_t>(at) + (seed << 40));
  tensor.copy_(numbers);
}

/// Changes the results of operators.
class Disturbance : public tap::OpTap {
 public:
  Disturbance(double share, uint64_t seed) : share_(share), seed_(seed) {}
  void call(const tap::OpCall& op, tap::Stack& stack) override {
    op.next(stack);
    for (const c10::IValue& result : op.results(stack)) {
      if (result.isTensor()) disturb(result.toTensor(), share_, seed_++);
      if (!result.isTensorList()) continue;
      for (const at::Tensor& each : result.toTensorVector()) disturb(each, share_, seed_++);
    }
  }

 private:
  double share_;
  uint64_t seed_;
};

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

std::vector<at::Tensor> run_with_errors(const graph::Program& program, std::vector<c10::Storage> inputs, double share) {
  graph::ProgramRunner runner(program);
  std::vector<c10::Storage> given = inputs, outputs(program.outputs.size());
  if (share == 0) {
    runner.run(given, program.numbers, outputs);
    return results_of(program, inputs, outputs);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const caffe2::TypeMeta dtype = program.values[program.inputs[i]].geometry.dtype;
    if (inputs[i]) disturb(flat(inputs[i], dtype), share, i);
  }
  const tap::OpTapGuard guard(std::make_shared<Disturbance>(share, inputs.size()));
  runner.run(given, program.numbers, outputs);
  return results_of(program, inputs, outputs);
}

}  // namespace bellows::compile_detail
