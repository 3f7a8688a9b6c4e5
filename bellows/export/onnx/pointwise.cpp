#include <cmath>
#include <limits>
#include <numbers>

#include "bellows/export/onnx/call.h"
#include "bellows/export/onnx/operators.h"
#include "bellows/export/onnx/shapes.h"

namespace bellows::onnx_export {

namespace {

using c10::ScalarType;

/// A function of one tensor with the dtype of the result.
void unary(Call& call) {
  call.result(call.node(call.onnx(), {call.tensor(0, call.result_dtype())}));
}

/// The second operand, which is a tensor or a number.
std::string second(Call& call, ScalarType dtype, size_t argument = 1) {
  const bool is_number =
      call.name().find(".Scalar") != std::string::npos || call.name().find("_Scalar") != std::string::npos;
  return is_number ? call.number_tensor(argument, dtype) : call.tensor(argument, dtype);
}

/// An operator with a factor of the second operand: add and sub.
std::string with_factor(Call& call, const std::string& x, ScalarType dtype, size_t argument = 2) {
  const double factor = call.number(argument);
  return factor == 1 ? x : call.node("Mul", {x, call.constant(factor, dtype)});
}

void add(Call& call) {
  const ScalarType dtype = call.result_dtype();
  call.result(call.node(call.onnx(), {call.tensor(0, dtype), with_factor(call, second(call, dtype), dtype)}));
}

void rsub(Call& call) {
  const ScalarType dtype = call.result_dtype();
  call.result(call.node("Sub", {second(call, dtype), with_factor(call, call.tensor(0, dtype), dtype)}));
}

void binary(Call& call) {
  const ScalarType dtype = call.result_dtype();
  const std::string op = dtype == c10::kBool && std::string(call.onnx()) == "Mul" ? "And" : call.onnx();
  call.result(call.node(op, {call.tensor(0, dtype), second(call, dtype)}));
}

std::string floored(Call& call, const std::string& quotient, ScalarType dtype, const std::string& how) {
  if (how == "floor") return call.node("Floor", {quotient});
  // Towards zero: ONNX has no operator for it.
  const std::string size = call.node("Floor", {call.node("Abs", {quotient})});
  return call.cast(call.node("Mul", {size, call.node("Sign", {quotient})}), dtype, dtype);
}

/// Division of integers with a rounding mode, through fp64, which is exact up to 2^53.
void divide_rounded(Call& call, const std::string& how) {
  const ScalarType dtype = call.result_dtype();
  const ScalarType wide = c10::isIntegralType(dtype, false) ? c10::kDouble : dtype;
  const std::string quotient = call.node("Div", {call.tensor(0, wide), second(call, wide)});
  call.result(call.cast(floored(call, quotient, wide, how), wide, dtype));
}

void div_mode(Call& call) {
  if (call.has(2))
    divide_rounded(call, call.text(2));
  else
    binary(call);
}

void floor_divide(Call& call) {
  divide_rounded(call, "floor");
}

/// The sign of the result is that of the divisor.
void remainder(Call& call) {
  const ScalarType dtype = call.result_dtype();
  const std::string x = call.tensor(0, dtype), y = second(call, dtype);
  if (c10::isIntegralType(dtype, false)) {
    call.result(call.node("Mod", {x, y}));
    return;
  }
  const std::string floor = call.node("Floor", {call.node("Div", {x, y})});
  call.result(call.node("Sub", {x, call.node("Mul", {floor, y})}));
}

void fmod(Call& call) {
  const ScalarType dtype = call.result_dtype();
  call.result(call.node("Mod", {call.tensor(0, dtype), second(call, dtype)}, {{"fmod", int64_t{1}}}));
}

/// The common dtype of a comparison, as libtorch promotes it.
ScalarType compared(Call& call) {
  const ScalarType a = call.dtype(0);
  if (call.name().find(".Scalar") != std::string::npos) {
    const double number = call.number(1);
    if (c10::isFloatingType(a)) return a;
    if (number != std::floor(number)) return c10::kFloat;
    return a == c10::kBool ? c10::kLong : a;
  }
  const ScalarType b = call.dtype(1);
  const auto weak = [&](size_t i) {
    return call.operand(i).operands[0]->geometry.sizes.empty() && call.rank(1 - i) > 0;
  };
  if (weak(1) && (c10::isFloatingType(a) || !c10::isFloatingType(b)) && a != c10::kBool) return a;
  if (weak(0) && (c10::isFloatingType(b) || !c10::isFloatingType(a)) && b != c10::kBool) return b;
  const ScalarType both = c10::promoteTypes(a, b);
  return both == c10::kBool ? c10::kInt : both;
}

void compare(Call& call) {
  const ScalarType dtype = compared(call);
  const std::string a = call.tensor(0, dtype), b = second(call, dtype);
  const bool unequal = std::string(call.onnx()) == "Not, Equal";
  const std::string made = call.node(unequal ? "Equal" : call.onnx(), {a, b});
  call.result(unequal ? call.node("Not", {made}) : made);
}

void logical(Call& call) {
  call.result(call.node(call.onnx(), {call.tensor(0, c10::kBool), call.tensor(1, c10::kBool)}));
}
void logical_not(Call& call) {
  call.result(call.node("Not", {call.tensor(0, c10::kBool)}));
}

void bitwise(Call& call) {
  if (call.result_dtype() != c10::kBool)
    call.fail(call.name() + " of integers has no mapping", "Opset 17 has bitwise operators for booleans only.");
  if (call.name().starts_with("aten::bitwise_not"))
    logical_not(call);
  else
    call.result(call.node(call.onnx(), {call.tensor(0, c10::kBool), second(call, c10::kBool)}));
}

void rsqrt(Call& call) {
  call.result(call.node("Reciprocal", {call.node("Sqrt", {call.tensor(0, call.result_dtype())})}));
}

void silu(Call& call) {
  const std::string x = call.tensor(0);
  call.result(call.node("Mul", {x, call.node("Sigmoid", {x})}));
}

void gelu(Call& call) {
  call.result(gelu_of(call, call.tensor(0), call.result_dtype(), call.text(1) == "tanh"));
}

void leaky_relu(Call& call) {
  const double slope = call.has(1) ? call.number(1) : 0.01;
  call.result(call.node("LeakyRelu", {call.tensor(0)}, {{"alpha", slope}}));
}

void elu(Call& call) {
  const double alpha = call.number(1), scale = call.number(2), input_scale = call.number(3);
  if (input_scale != 1) call.fail("elu with input_scale has no mapping", "Multiply the input instead.");
  std::string y = call.node("Elu", {call.tensor(0)}, {{"alpha", alpha}});
  if (scale != 1) y = call.node("Mul", {y, call.constant(scale, call.result_dtype())});
  call.result(y);
}

void softplus(Call& call) {
  const ScalarType dtype = call.result_dtype();
  const double beta = call.number(1), threshold = call.number(2);
  const std::string x = call.tensor(0);
  const std::string scaled = beta == 1 ? x : call.node("Mul", {x, call.constant(beta, dtype)});
  std::string y = call.node("Softplus", {scaled});
  if (beta != 1) y = call.node("Div", {y, call.constant(beta, dtype)});
  call.result(call.node("Where", {call.node("Greater", {scaled, call.constant(threshold, dtype)}), x, y}));
}

void mish(Call& call) {
  const std::string x = call.tensor(0);
  call.result(call.node("Mul", {x, call.node("Tanh", {call.node("Softplus", {x})})}));
}

void hardsigmoid(Call& call) {
  call.result(call.node("HardSigmoid", {call.tensor(0)}, {{"alpha", 1.0 / 6}, {"beta", 0.5}}));
}

/// Limits as numbers, tensors, or absent.
std::string clamped(Call& call, std::string x, size_t low, size_t high) {
  const ScalarType dtype = call.result_dtype();
  const bool tensors = call.name().ends_with(".Tensor");
  const auto limit = [&](size_t argument) {
    return tensors ? call.tensor(argument, dtype) : call.constant(call.number(argument), dtype);
  };
  if (low && call.has(low)) x = call.node("Max", {x, limit(low)});
  if (high && call.has(high)) x = call.node("Min", {x, limit(high)});
  return x;
}
void clamp(Call& call) {
  call.result(clamped(call, call.tensor(0, call.result_dtype()), 1, 2));
}
void clamp_min(Call& call) {
  call.result(clamped(call, call.tensor(0, call.result_dtype()), 1, 0));
}
void clamp_max(Call& call) {
  call.result(clamped(call, call.tensor(0, call.result_dtype()), 0, 1));
}

void power(Call& call) {
  const ScalarType dtype = call.result_dtype();
  const std::string& name = call.name();
  if (name.ends_with("Tensor_Scalar")) {
    const double exponent = call.number(1);
    const std::string x = call.tensor(0, dtype);
    if (exponent == 2)
      call.result(call.node("Mul", {x, x}));
    else if (exponent == 0.5)
      call.result(call.node("Sqrt", {x}));
    else
      call.result(call.node("Pow", {x, call.constant(exponent, dtype)}));
  } else if (name.ends_with(".Scalar")) {
    call.result(call.node("Pow", {call.constant(call.number(0), dtype), call.tensor(1, dtype)}));
  } else {
    call.result(call.node("Pow", {call.tensor(0, dtype), call.tensor(1, dtype)}));
  }
}

void where(Call& call) {
  const ScalarType dtype = call.result_dtype();
  call.result(call.node("Where", {call.tensor(0, c10::kBool), call.tensor(1, dtype), call.tensor(2, dtype)}));
}

void masked_fill(Call& call) {
  const ScalarType dtype = call.result_dtype();
  call.result(call.node("Where", {call.tensor(1, c10::kBool), second(call, dtype, 2), call.tensor(0, dtype)}));
}

/// start + weight · (end − start)
void lerp(Call& call) {
  const ScalarType dtype = call.result_dtype();
  const std::string start = call.tensor(0), difference = call.node("Sub", {call.tensor(1), start});
  call.result(call.node("Add", {start, call.node("Mul", {second(call, dtype, 2), difference})}));
}

/// self + value · a · b or a / b
void add_combined(Call& call) {
  const ScalarType dtype = call.result_dtype();
  const bool quotient = call.name().find("addcdiv") != std::string::npos;
  const std::string both = call.node(quotient ? "Div" : "Mul", {call.tensor(1, dtype), call.tensor(2, dtype)});
  call.result(call.node("Add", {call.tensor(0, dtype), with_factor(call, both, dtype, 3)}));
}

void prelu(Call& call) {
  call.result(call.node("PRelu", {call.tensor(0), call.tensor(1)}));
}

void log1p(Call& call) {
  const ScalarType dtype = call.result_dtype();
  call.result(call.node("Log", {call.node("Add", {call.tensor(0, dtype), call.constant(1, dtype)})}));
}
void expm1(Call& call) {
  const ScalarType dtype = call.result_dtype();
  call.result(call.node("Sub", {call.node("Exp", {call.tensor(0, dtype)}), call.constant(1, dtype)}));
}
void log2(Call& call) {
  const ScalarType dtype = call.result_dtype();
  call.result(call.node("Mul", {call.node("Log", {call.tensor(0, dtype)}), call.constant(std::numbers::log2e, dtype)}));
}
void exp2(Call& call) {
  const ScalarType dtype = call.result_dtype();
  call.result(call.node("Pow", {call.constant(2, dtype), call.tensor(0, dtype)}));
}
void trunc(Call& call) {
  call.result(floored(call, call.tensor(0), call.result_dtype(), "trunc"));
}
void isnan(Call& call) {
  call.result(call.node("IsNaN", {call.tensor(0)}));
}
void isinf(Call& call) {
  call.result(call.node("IsInf", {call.tensor(0)}));
}

void hardtanh(Call& call) {
  call.result(clamped(call, call.tensor(0), 1, 2));
}

void threshold(Call& call) {
  const ScalarType dtype = call.result_dtype();
  const std::string x = call.tensor(0);
  call.result(call.node("Where", {call.node("Greater", {x, call.constant(call.number(1), dtype)}), x,
                                  call.constant(call.number(2), dtype)}));
}

constexpr OperatorMapping pointwise_operators[] = {
    {"aten::abs", "Abs", unary},
    {"aten::acos", "Acos", unary},
    {"aten::add.Scalar", "Add", add},
    {"aten::add.Tensor", "Add", add},
    {"aten::addcdiv", "Add, Div, Mul", add_combined},
    {"aten::addcmul", "Add, Mul", add_combined},
    {"aten::asin", "Asin", unary},
    {"aten::atan", "Atan", unary},
    {"aten::bitwise_and.Scalar", "And", bitwise},
    {"aten::bitwise_and.Tensor", "And", bitwise},
    {"aten::bitwise_not", "Not", bitwise},
    {"aten::bitwise_or.Scalar", "Or", bitwise},
    {"aten::bitwise_or.Tensor", "Or", bitwise},
    {"aten::bitwise_xor.Tensor", "Xor", bitwise},
    {"aten::ceil", "Ceil", unary},
    {"aten::clamp", "Max, Min", clamp},
    {"aten::clamp.Tensor", "Max, Min", clamp},
    {"aten::clamp_max", "Min", clamp_max},
    {"aten::clamp_max.Tensor", "Min", clamp_max},
    {"aten::clamp_min", "Max", clamp_min},
    {"aten::clamp_min.Tensor", "Max", clamp_min},
    {"aten::cos", "Cos", unary},
    {"aten::cosh", "Cosh", unary},
    {"aten::div.Scalar", "Div", binary},
    {"aten::div.Scalar_mode", "Div, Floor", div_mode},
    {"aten::div.Tensor", "Div", binary},
    {"aten::div.Tensor_mode", "Div, Floor", div_mode},
    {"aten::elu", "Elu", elu},
    {"aten::eq.Scalar", "Equal", compare},
    {"aten::eq.Tensor", "Equal", compare},
    {"aten::erf", "Erf", unary},
    {"aten::exp", "Exp", unary},
    {"aten::exp2", "Pow", exp2},
    {"aten::expm1", "Exp, Sub", expm1},
    {"aten::floor", "Floor", unary},
    {"aten::floor_divide", "Div, Floor", floor_divide},
    {"aten::fmod.Scalar", "Mod", fmod},
    {"aten::fmod.Tensor", "Mod", fmod},
    {"aten::ge.Scalar", "GreaterOrEqual", compare},
    {"aten::ge.Tensor", "GreaterOrEqual", compare},
    {"aten::gelu", "Erf or Tanh, Mul, Add", gelu},
    {"aten::gt.Scalar", "Greater", compare},
    {"aten::gt.Tensor", "Greater", compare},
    {"aten::hardsigmoid", "HardSigmoid", hardsigmoid},
    {"aten::hardswish", "HardSwish", unary},
    {"aten::hardtanh", "Max, Min", hardtanh},
    {"aten::isinf", "IsInf", isinf},
    {"aten::isnan", "IsNaN", isnan},
    {"aten::le.Scalar", "LessOrEqual", compare},
    {"aten::le.Tensor", "LessOrEqual", compare},
    {"aten::leaky_relu", "LeakyRelu", leaky_relu},
    {"aten::lerp.Scalar", "Add, Mul, Sub", lerp},
    {"aten::lerp.Tensor", "Add, Mul, Sub", lerp},
    {"aten::log", "Log", unary},
    {"aten::log1p", "Add, Log", log1p},
    {"aten::log2", "Log, Mul", log2},
    {"aten::logical_and", "And", logical},
    {"aten::logical_not", "Not", logical_not},
    {"aten::logical_or", "Or", logical},
    {"aten::logical_xor", "Xor", logical},
    {"aten::lt.Scalar", "Less", compare},
    {"aten::lt.Tensor", "Less", compare},
    {"aten::masked_fill.Scalar", "Where", masked_fill},
    {"aten::masked_fill.Tensor", "Where", masked_fill},
    {"aten::maximum", "Max", binary},
    {"aten::minimum", "Min", binary},
    {"aten::mish", "Mul, Softplus, Tanh", mish},
    {"aten::mul.Scalar", "Mul", binary},
    {"aten::mul.Tensor", "Mul", binary},
    {"aten::ne.Scalar", "Not, Equal", compare},
    {"aten::ne.Tensor", "Not, Equal", compare},
    {"aten::neg", "Neg", unary},
    {"aten::pow.Scalar", "Pow", power},
    {"aten::pow.Tensor_Scalar", "Pow, Mul or Sqrt", power},
    {"aten::pow.Tensor_Tensor", "Pow", power},
    {"aten::_prelu_kernel", "PRelu", prelu},
    {"aten::reciprocal", "Reciprocal", unary},
    {"aten::relu", "Relu", unary},
    {"aten::remainder.Scalar", "Mod, or Div, Floor, Mul, Sub", remainder},
    {"aten::remainder.Tensor", "Mod, or Div, Floor, Mul, Sub", remainder},
    {"aten::round", "Round", unary},
    {"aten::rsqrt", "Reciprocal, Sqrt", rsqrt},
    {"aten::rsub.Scalar", "Sub", rsub},
    {"aten::rsub.Tensor", "Sub", rsub},
    {"aten::sigmoid", "Sigmoid", unary},
    {"aten::sign", "Sign", unary},
    {"aten::silu", "Mul, Sigmoid", silu},
    {"aten::sin", "Sin", unary},
    {"aten::sinh", "Sinh", unary},
    {"aten::softplus", "Softplus, Where", softplus},
    {"aten::sqrt", "Sqrt", unary},
    {"aten::sub.Scalar", "Sub", add},
    {"aten::sub.Tensor", "Sub", add},
    {"aten::tan", "Tan", unary},
    {"aten::tanh", "Tanh", unary},
    {"aten::threshold", "Greater, Where", threshold},
    {"aten::trunc", "Abs, Floor, Mul, Sign", trunc},
    {"aten::where.self", "Where", where},
};

}  // namespace

std::string gelu_of(Call& call, const std::string& x, ScalarType dtype, bool tanh) {
  std::string inner;
  if (tanh) {
    const std::string cube = call.node("Mul", {call.node("Mul", {x, x}), x});
    const std::string sum = call.node("Add", {x, call.node("Mul", {cube, call.constant(0.044715, dtype)})});
    inner = call.node("Tanh", {call.node("Mul", {sum, call.constant(std::sqrt(2 / std::numbers::pi), dtype)})});
  } else {
    inner = call.node("Erf", {call.node("Div", {x, call.constant(std::numbers::sqrt2, dtype)})});
  }
  const std::string twice = call.node("Mul", {x, call.node("Add", {inner, call.constant(1, dtype)})});
  return call.node("Mul", {twice, call.constant(0.5, dtype)});
}

std::span<const OperatorMapping> pointwise_mappings() {
  return pointwise_operators;
}

}  // namespace bellows::onnx_export
