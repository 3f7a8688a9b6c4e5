// Operators of quantized models, as arithmetic on integers that are stored in floating-point tensors. They compute the same
// as the operators in quant/operators.h.
#include <ATen/ops/eye.h>

#include <cmath>
#include <limits>

#include "bellows/export/aten/translation.h"

namespace bellows::aten_export {

namespace {

using c10::ScalarType;

constexpr double largest_signed = 127, integers = 255;

struct Quantization {
  Value scale = Value::none, zero_point = Value::none;  ///< without zero_point, it is 0
  bool is_signed = true;
};

/// clamp(round(x · (1 / scale)) + zero_point) as fp32
Value quantized(OperatorCall& call, Value x, const Quantization& to) {
  const double low = to.is_signed ? -largest_signed - 1 : 0, infinity = std::numeric_limits<double>::infinity();
  const Value factor = call.call("aten::reciprocal", {to.scale});
  Value y = call.call("aten::round", {call.call("aten::mul.Tensor", {x, factor})});
  if (to.zero_point != Value::none) y = call.call("aten::add.Tensor", {y, to.zero_point});
  y = call.call("aten::nan_to_num", {y, low, infinity, -infinity});
  return call.call("aten::clamp", {y, low, low + integers});
}

void quantize(OperatorCall& call) {
  const Value y = quantized(call, call.tensor(0, c10::kFloat),
                            {.scale = call.tensor(1), .zero_point = call.tensor(2), .is_signed = call.flag(3)});
  call.result(call.cast(y, c10::kFloat, call.result_dtype()));
}

/// The integers of the first argument minus the zero point.
Value centered(OperatorCall& call, ScalarType dtype) {
  return call.call("aten::sub.Tensor", {call.tensor(0, dtype), call.tensor(2)});
}

void dequantize(OperatorCall& call) {
  call.result(call.call("aten::mul.Tensor", {centered(call, c10::kFloat), call.tensor(1)}));
}

Value output_scale(OperatorCall& call) {
  return call.call("aten::mul.Tensor", {call.tensor(1), call.tensor(4)});
}

/// double holds all sums of integers exactly.
void quantized_linear(OperatorCall& call) {
  const Value sums = call.call("aten::linear", {centered(call, c10::kDouble), call.tensor(3, c10::kDouble)});
  Value y = call.call("aten::mul.Tensor", {call.cast(sums, c10::kDouble, c10::kFloat), output_scale(call)});
  if (call.has(5)) y = call.call("aten::add.Tensor", {y, call.tensor(5, c10::kFloat)});
  call.result(y);
}

void quantized_convolution(OperatorCall& call) {
  std::vector<int64_t> channel(call.sizes(3).size(), 1);
  channel[1] = -1;
  const auto per_channel = [&](Value value) { return call.call("aten::reshape", {value, channel}); };
  const std::vector<int64_t> no_padding(call.sizes(3).size() - 2, 0);
  const Value sums = call.call(
      "aten::convolution", {centered(call, c10::kFloat), call.tensor(3, c10::kFloat), Value::none, call.argument_of(6),
                            call.argument_of(7), call.argument_of(8), false, no_padding, call.argument_of(9)});
  Value y = call.call("aten::mul.Tensor", {sums, per_channel(output_scale(call))});
  if (call.has(5)) y = call.call("aten::add.Tensor", {y, per_channel(call.tensor(5, c10::kFloat))});
  call.result(y);
}

/// (query, key, value, query_scale, key_scale, value_scale, scale)
void quantized_attention(OperatorCall& call) {
  const auto operand = [&](size_t index) {
    const Value x = call.tensor(index, c10::kFloat);
    return call.cast(quantized(call, x, {.scale = call.tensor(index + 3)}), c10::kFloat, c10::kDouble);
  };
  const auto multiplied = [&](Value a, Value b) {
    return call.cast(call.call("aten::matmul", {a, b}), c10::kDouble, c10::kFloat);
  };
  const double width = static_cast<double>(call.fixed_size(0, 3));
  const auto factor = static_cast<float>(call.has(6) ? call.number(6) : 1 / std::sqrt(width));
  const Value scale = call.call("aten::mul.Scalar", {call.call("aten::mul.Tensor", {call.tensor(3), call.tensor(4)}),
                                                     static_cast<double>(factor)});
  const Value sums = multiplied(operand(0), call.call("aten::transpose.int", {operand(1), 2, 3}));
  const Value logits = call.call("aten::mul.Tensor", {sums, scale});
  const std::vector<int64_t> last{-1};
  const Value largest = call.call("aten::amax", {logits, last, true});
  const Value exponentials = call.call("aten::exp", {call.call("aten::sub.Tensor", {logits, largest})});
  const Value powers = call.call("aten::round", {call.call("aten::mul.Scalar", {exponentials, integers})});
  const Value mixed = multiplied(call.cast(powers, c10::kFloat, c10::kDouble), operand(2));
  const Value total = call.call("aten::sum.dim_IntList", {powers, last, true});
  call.result(call.call("aten::mul.Tensor", {mixed, call.call("aten::div.Tensor", {call.tensor(5), total})}));
}

/// The packed weight of a layer as a matrix [outputs, inputs] in the dtype of the input. The operator itself unpacks it, as
/// its result for the identity matrix.
at::Tensor unpacked_weight(OperatorCall& call) {
  const export_detail::InputSource* packed = call.translation().recorded().source(call.operand(1).value());
  if (!packed || packed->argument >= 0)
    call.fail("the weight of a weight-only layer must be a constant", "Quantize the model before the export.");
  const at::ScalarType dtype = call.dtype(0) == c10::kBFloat16 ? c10::kBFloat16 : c10::kFloat;
  torch::jit::Stack stack{at::eye(call.integer(7), at::TensorOptions(dtype)), packed->tensor, c10::IValue()};
  for (size_t i = 3; i < call.instruction().arguments.size(); ++i)
    stack.push_back(call.instruction().arguments[i].constant);
  call.instruction().op->handle->callBoxed(stack);
  return stack[0].toTensor().t().contiguous();
}

/// (input, packed, bias, bits, is_signed, has_zero_points, outputs, inputs, group_size)
void weight_only_linear(OperatorCall& call) {
  const at::Tensor weight = unpacked_weight(call);
  const ScalarType dtype = weight.scalar_type();
  const Value y = call.call(
      "aten::linear", {call.tensor(0, dtype), call.translation().builder().constant(weight), call.tensor(2, dtype)});
  call.result(call.cast(y, dtype, call.result_dtype()));
}

}  // namespace

std::vector<SpecialOperator> quantized_operators() {
  return {
      {"bellows::dequantize", dequantize},
      {"bellows::quantize", quantize},
      {"bellows::quantized_attention", quantized_attention},
      {"bellows::quantized_convolution", quantized_convolution},
      {"bellows::quantized_linear", quantized_linear},
      {"bellows::weight_only_linear", weight_only_linear},
  };
}

}  // namespace bellows::aten_export
