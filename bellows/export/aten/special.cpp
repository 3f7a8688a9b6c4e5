// Operators that are not called as they were recorded.
#include <c10/core/ScalarType.h>

#include "bellows/export/aten/translation.h"
#include "bellows/kernels/activation.h"

namespace bellows::aten_export {

namespace {

using c10::ScalarType;

/// A tensor with the sizes of the written part.
Value filled(OperatorCall& call, const Argument& value) {
  return call.call("aten::full", {call.size_list(call.sizes(0)), value, call.dtype(0)});
}

void fill_number(OperatorCall& call) {
  call.result(filled(call, call.argument_of(1)));
}

void zero(OperatorCall& call) {
  call.result(filled(call, 0));
}

/// The elements of an argument, in the sizes and dtype of the written part.
Value spread(OperatorCall& call, size_t source) {
  const Value value = call.tensor(source, call.dtype(0));
  return call.sizes(source) == call.sizes(0) ? value
                                             : call.call("aten::expand", {value, call.size_list(call.sizes(0))});
}

void copy(OperatorCall& call) {
  call.result(spread(call, 1));
}

void reshape_copy(OperatorCall& call) {
  call.result(call.call("aten::reshape", {call.tensor(0), call.argument_of(1)}));
}

void lift(OperatorCall& call) {
  call.result(call.tensor(0));
}

/// (bias, x, weightᵀ, beta, alpha) as a linear, which is the same call inside libtorch. TorchScript would divide addmm into
/// two operators, and bf16 results would be rounded twice.
void addmm(OperatorCall& call) {
  const VariedSizes bias = call.sizes(0);
  if (call.number(3) == 1 && call.number(4) == 1 && bias.size() == 1 && bias[0] == call.result_sizes()[1]) {
    const Value weight = call.translation().read_transposed(call.operand(2));
    return call.result(call.call("aten::linear", {call.tensor(1), weight, call.tensor(0)}));
  }
  call.result(call.call("aten::addmm",
                        {call.tensor(0), call.tensor(1), call.tensor(2), call.argument_of(3), call.argument_of(4)}));
}

void batch_norm(OperatorCall& call) {
  std::vector<Argument> arguments{call.tensor(0), call.tensor(1), call.tensor(2)};
  const bool training = call.flag(5);
  if (training && call.has(3))
    call.fail("a batch norm in training changes its statistics, which cannot be exported",
              "Call eval() before the export.");
  if (training) {
    arguments.insert(arguments.end(), {true, call.argument_of(6), call.argument_of(7)});
    return call.result(0, call.call("aten::_native_batch_norm_legit.no_stats", arguments));
  }
  arguments.insert(arguments.end(), {call.tensor(3), call.tensor(4), call.argument_of(6), call.argument_of(7)});
  call.translation().write(call.result_operand(), call.call("aten::_native_batch_norm_legit_no_training", arguments));
}

/// (query, key, value, dropout_p, is_causal, attn_mask, scale), in a form for all devices.
void attention(OperatorCall& call) {
  if (call.number(3) != 0)
    call.fail("attention with dropout draws random numbers, which cannot be exported",
              "Call eval() before the export.");
  call.result(
      0, call.call("aten::scaled_dot_product_attention", {call.tensor(0), call.tensor(1), call.tensor(2),
                                                          call.tensor(5), 0.0, call.flag(4), call.argument_of(6)}));
}

// Operators of this library.

ScalarType sum_type(ScalarType dtype) {
  return dtype == c10::kDouble ? c10::kDouble : c10::kFloat;
}

struct Norm {
  Value x = Value::none;
  int64_t dims = 1;
  size_t weight = 2, bias = 3;  ///< arguments
  Argument eps{};
  bool center = true;
};

Value layer_norm_of(OperatorCall& call, const Norm& norm, ScalarType dtype) {
  const VariedSizes all = call.sizes(0);
  const VariedSizes last(all.end() - norm.dims, all.end());
  return call.call("aten::native_layer_norm",
                   {call.cast(norm.x, call.dtype(0), dtype), call.size_list(last), call.tensor(norm.weight, dtype),
                    call.tensor(norm.bias, dtype), norm.eps});
}

/// x / √(mean(x²) + eps) · weight + bias
Value rms_norm_of(OperatorCall& call, const Norm& norm, ScalarType dtype) {
  std::vector<int64_t> axes;
  for (int64_t i = norm.dims; i > 0; --i) axes.push_back(-i);
  const Value x = call.cast(norm.x, call.dtype(0), dtype);
  const Value square = call.call("aten::mul.Tensor", {x, x});
  const Value mean = call.call("aten::mean.dim", {square, axes, true});
  const Value factor = call.call("aten::rsqrt", {call.call("aten::add.Scalar", {mean, norm.eps})});
  Value y = call.call("aten::mul.Tensor", {x, factor});
  if (call.has(norm.weight)) y = call.call("aten::mul.Tensor", {y, call.tensor(norm.weight, dtype)});
  if (call.has(norm.bias)) y = call.call("aten::add.Tensor", {y, call.tensor(norm.bias, dtype)});
  return y;
}

/// The norms of this library compute 16-bit tensors in fp32.
Value norm_of(OperatorCall& call, const Norm& norm) {
  const ScalarType dtype = sum_type(call.dtype(0));
  const Value y = norm.center ? layer_norm_of(call, norm, dtype) : rms_norm_of(call, norm, dtype);
  return call.cast(y, dtype, call.dtype(0));
}

void own_norm(OperatorCall& call) {
  call.result(
      0, norm_of(call, {.x = call.tensor(0), .dims = call.integer(1), .eps = call.number(4), .center = call.flag(5)}));
}

void dropout_norm(OperatorCall& call) {
  if (call.number(5) != 0)
    call.fail("dropout in training draws random numbers, which cannot be exported", "Call eval() before the export.");
  const Value sum = call.call("aten::add.Tensor", {call.tensor(0), call.tensor(1)});
  call.result(1, sum);
  call.result(0, norm_of(call, {.x = sum, .eps = call.number(6), .center = call.flag(7)}));
}

void activation(OperatorCall& call) {
  using kernels::Activation;
  const auto kind = static_cast<Activation>(call.integer(0));
  const ScalarType dtype = sum_type(call.dtype(1));
  const Value x = call.tensor(1, dtype);
  Value y = Value::none;
  if (kind == Activation::swiglu)
    y = call.call("aten::mul.Tensor", {call.call("aten::silu", {x}), call.tensor(2, dtype)});
  else
    y = call.call("aten::gelu", {x, kind == Activation::gelu_tanh ? "tanh" : "none"});
  call.result(call.cast(y, dtype, call.dtype(1)));
}

}  // namespace

std::vector<SpecialOperator> special_operators() {
  return {
      {"aten::_reshape_copy", reshape_copy},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
      {"aten::addmm", addmm},
      {"aten::copy_", copy},
      {"aten::fill_.Scalar", fill_number},
      {"aten::fill_.Tensor", copy},
      {"aten::lift_fresh_copy", lift},
      {"aten::native_batch_norm", batch_norm},
      {"aten::zero_", zero},
      {"bellows::activation", activation},
      {"bellows::dropout_norm", dropout_norm},
      {"bellows::norm", own_norm},
  };
}

}  // namespace bellows::aten_export
