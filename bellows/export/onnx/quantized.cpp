#include <ATen/ops/zeros.h>

#include <cmath>

#include "bellows/export/onnx/call.h"
#include "bellows/export/onnx/operators.h"

namespace bellows::onnx_export {

namespace {

using c10::ScalarType;

/// Scale and zero point of activations, as QuantizeLinear and DequantizeLinear need them: constants, the zero point in
/// the type of the integers.
struct ActivationParameters {
  std::string scale, zero_point;
  std::vector<Attribute> attributes{};
};

ActivationParameters parameters_of(Call& call, size_t scale, size_t zero_point, ScalarType integers) {
  Translation& translation = call.translation();
  const export_detail::InputSource* source = translation.source(call.operand(zero_point).value());
  if (!source || source->argument >= 0)
    call.fail("a zero point that is not a constant has no mapping", "Quantize the model with the method static_range.");
  const at::Tensor stored = source->tensor.to(integers);
  ActivationParameters result{.scale = call.tensor(scale), .zero_point = {}};
  const VariedSizes sizes = call.sizes(scale);
  if (sizes.empty() || (sizes.size() == 1 && sizes[0].is(1))) {
    result.zero_point = translation.stored(stored.reshape(source->tensor.sizes()));
    return result;
  }
  if (sizes.size() != 1 || !sizes[0].constant())
    call.fail("activations with one scale per row have no mapping", "Quantize the model with the method static_range.");
  result.zero_point = translation.stored(stored.reshape({1}).expand({sizes[0].first()}).contiguous());
  result.attributes.push_back({"axis", int64_t{-1}});
  return result;
}

void quantize(Call& call) {
  const ActivationParameters parameters = parameters_of(call, 1, 2, call.result_dtype());
  VariedSizes sizes;
  std::string rows;
  if (call.dtype(0) == c10::kFloat) rows = call.translation().read_rows(call.operand(0), sizes);
  // OpenVINO 2026.4 cannot compile a concatenation of sequences that is quantized as such.
  if (call.translation().builder().operator_of(rows) == "Concat") rows.clear();
  const std::string x = rows.empty() ? call.tensor(0, c10::kFloat) : rows;
  const std::string y =
      call.node("QuantizeLinear", {x, parameters.scale, parameters.zero_point}, parameters.attributes);
  if (rows.empty())
    call.result(y);
  else
    call.translation().write_rows(call.result_operand(), y, sizes);
}

/// Params: x – the integers; empty: those of the first argument
std::string dequantized(Call& call, const std::string& x = {}) {
  const ActivationParameters parameters = parameters_of(call, 1, 2, call.dtype(0));
  return call.node("DequantizeLinear", {x.empty() ? call.tensor(0) : x, parameters.scale, parameters.zero_point},
                   parameters.attributes);
}

void dequantize(Call& call) {
  call.result(dequantized(call));
}

/// A weight with one scale per output.
std::string dequantized_weight(Call& call) {
  const std::string zero = call.translation().filled({call.fixed_size(3, 0)}, 0, call.dtype(3));
  return call.node("DequantizeLinear", {call.tensor(3), call.tensor(4), zero}, {{"axis", int64_t{0}}});
}

void quantized_linear(Call& call) {
  const std::string weight = call.node("Transpose", {dequantized_weight(call)}, {{"perm", std::vector<int64_t>{1, 0}}});
  VariedSizes sizes;
  const std::string rows = call.translation().read_rows(call.operand(0), sizes);
  std::string y = call.node("MatMul", {dequantized(call, rows), weight});
  if (call.has(5)) y = call.node("Add", {y, call.tensor(5, c10::kFloat)});
  if (rows.empty()) return call.result(y);
  sizes.back() = call.sizes(3)[0];
  call.translation().write_rows(call.result_operand(), y, sizes);
}

void quantized_convolution(Call& call) {
  std::vector<int64_t> kernel, pads = call.integers(7);
  for (int64_t i = 2; i < call.rank(3); ++i) kernel.push_back(call.fixed_size(3, i));
  const size_t dims = kernel.size();
  const auto all = [&](std::vector<int64_t> numbers) {
    if (numbers.size() == 1) numbers.resize(dims, numbers[0]);
    return numbers;
  };
  pads = all(pads);
  pads.insert(pads.end(), pads.begin(), pads.begin() + static_cast<int64_t>(dims));
  std::vector<std::string> inputs{dequantized(call), dequantized_weight(call)};
  if (call.has(5)) inputs.push_back(call.tensor(5, c10::kFloat));
  call.result(call.node("Conv", inputs,
                        {{"kernel_shape", kernel},
                         {"strides", all(call.integers(6))},
                         {"pads", pads},
                         {"dilations", all(call.integers(8))},
                         {"group", call.integer(9)}}));
}

/// Query, key and value are integers with one scale each. The weights stay in floating point.
void quantized_attention(Call& call) {
  const std::string zero = call.translation().stored(at::zeros({}, at::kChar));
  const auto operand = [&](size_t index) {
    const std::string scale = call.tensor(index + 3);
    const std::string integers = call.node("QuantizeLinear", {call.tensor(index, c10::kFloat), scale, zero});
    return call.node("DequantizeLinear", {integers, scale, zero});
  };
  const double factor = call.has(6) ? call.number(6) : 1 / std::sqrt(static_cast<double>(call.fixed_size(0, -1)));
  const std::string keys = call.node("Transpose", {operand(1)}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
  const std::string scores =
      call.node("Mul", {call.node("MatMul", {operand(0), keys}), call.constant(factor, c10::kFloat)});
  call.result(call.node("MatMul", {call.node("Softmax", {scores}, {{"axis", int64_t{-1}}}), operand(2)}));
}

constexpr OperatorMapping quantized_operators[] = {
    {"bellows::dequantize", "DequantizeLinear", dequantize},
    {"bellows::quantize", "QuantizeLinear", quantize},
    {"bellows::quantized_attention", "QuantizeLinear, DequantizeLinear, MatMul, Softmax", quantized_attention},
    {"bellows::quantized_convolution", "DequantizeLinear, Conv", quantized_convolution},
    {"bellows::quantized_linear", "DequantizeLinear, MatMul, Add", quantized_linear},
};

}  // namespace

std::span<const OperatorMapping> quantized_mappings() {
  return quantized_operators;
}

}  // namespace bellows::onnx_export
