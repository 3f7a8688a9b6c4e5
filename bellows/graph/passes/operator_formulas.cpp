#include <ATen/core/Reduction.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "bellows/graph/passes/expression_maker.h"
#include "bellows/graph/passes/fake_quantize_formulas.h"
#include "bellows/graph/passes/norm_formulas.h"

// The formulas of all operators, in groups. Each group has a write function that returns false if it does not support
// the operator. Those of norms are in norm_formulas.cpp, and those of
// quantization-aware training in fake_quantize_formulas.cpp.
namespace bellows::graph {
namespace detail {
namespace {

using F = Function;
using Formula = Ref (*)(Maker&);

Ref floor_at(Ref x, double low) {
  return call(F::maximum, x, low);
}
Ref cap_at(Ref x, double high) {
  return call(F::minimum, x, high);
}
Ref zero_of(Ref x) {
  return x.maker->cast(x.maker->value(0), x.maker->type_of(x));
}

Ref sigmoid(Ref x) {
  return 1.0 / (1.0 + call(F::exp, -x));
}

template <F function>
Ref unary(Maker& m) {
  return call(function, m.in(0));
}

template <F function>
Ref rounding(Maker& m) {
  return c10::isFloatingType(m.type) ? call(function, m.in(0)) : m.in(0);
}

template <F function>
Ref binary(Maker& m) {
  return call(function, m.in(0), m.has(1) ? m.in(1) : m.number(1));
}

/// Computed in the common type of the operands, not in the type of the result.
template <F function>
Ref comparison(Maker& m) {
  m.type = compute_type(common_type(m.instruction));
  return binary<function>(m);
}

Ref as_bool(Maker& m, int argument) {
  return m.cast(m.raw(argument), c10::kBool);
}

template <F function>
Ref logical(Maker& m) {
  return call(function, as_bool(m, 0), as_bool(m, 1));
}

/// For copies: the store converts to the type of the result.
Ref same(Maker& m) {
  m.type = compute_type(m.operand(0)->geometry.dtype.toScalarType());
  return m.in(0);
}

/// A cast in the user's code rounds, even if its result is cast back.
Ref to_copy(Maker& m) {
  const c10::ScalarType from = m.operand(0)->geometry.dtype.toScalarType(),
                        to = m.result().geometry.dtype.toScalarType();
  const Ref x = same(m);
  return from != to && compute_type(to) != to ? m.cast(x, to) : x;
}

Ref copied(Maker& m) {
  m.type = compute_type(m.operand(1)->geometry.dtype.toScalarType());
  return m.in(1);
}

Ref second(Maker& m, int argument) {
  return m.has(argument) ? m.in(argument) : m.number(argument);
}

Ref add(Maker& m) {
  return m.in(0) + second(m, 1) * m.number(2);
}
Ref sub(Maker& m) {
  return m.in(0) - second(m, 1) * m.number(2);
}
Ref reversed_sub(Maker& m) {
  return second(m, 1) - m.in(0) * m.number(2);
}
Ref mul(Maker& m) {
  return m.in(0) * second(m, 1);
}
Ref div(Maker& m) {
  return m.in(0) / second(m, 1);
}
Ref addcmul(Maker& m) {
  return m.in(0) + m.number(3) * m.in(1) * m.in(2);
}
Ref addcdiv(Maker& m) {
  return m.in(0) + m.number(3) * m.in(1) / m.in(2);
}
Ref lerp(Maker& m) {
  const Ref start = m.in(0), end = m.in(1), weight = second(m, 2), way = end - start;
  const Ref low = start + weight * way, high = end - way * (1.0 - weight);
  if (m.is_constant(weight)) return std::abs(m.constant_of(weight)) < 0.5 ? low : high;
  return where(call(F::lt, call(F::abs, weight), 0.5), low, high);
}
Ref clamp(Maker& m) {
  Ref x = m.in(0);
  if (!m.is_none(1)) x = call(F::maximum, x, second(m, 1));
  if (m.instruction.arguments.size() > 2 && !m.is_none(2)) x = call(F::minimum, x, second(m, 2));
  return x;
}
Ref power(Maker& m) {
  const Ref x = m.in(0), exponent = second(m, 1);
  const double known = m.is_constant(exponent) ? m.constant_of(exponent) : NAN;
  if (known == 1) return x;
  if (known == 2) return x * x;
  if (known == 3) return x * x * x;
  if (known == 0.5) return call(F::sqrt, x);
  if (known == -0.5) return call(F::rsqrt, x);
  if (known == -1) return call(F::reciprocal, x);
  if (known == -2) return 1.0 / (x * x);
  m.bad = m.bad || !c10::isFloatingType(m.type);
  return call(F::pow, x, exponent);
}
Ref square(Maker& m) {
  const Ref x = m.in(0);
  return x * x;
}
Ref filled(Maker& m) {
  return second(m, 1);
}
Ref zero(Maker& m) {
  return m.value(0);
}
Ref chosen(Maker& m) {
  return where(as_bool(m, 0), m.in(1), m.in(2));
}
Ref masked_fill(Maker& m) {
  return where(as_bool(m, 1), second(m, 2), m.in(0));
}

Ref is_infinite(Maker& m) {
  const Ref x = m.raw(0), value = m.cast(x, compute_type(m.type_of(x)));
  m.bad = m.bad || !c10::isFloatingType(m.type_of(value));
  m.type = m.type_of(value);
  return call(F::eq, call(F::abs, value), std::numeric_limits<double>::infinity());
}

/// NaN becomes the smallest integer, as in the operator.
Ref quantize(Maker& m) {
  m.type = c10::kFloat;
  const double low = m.constant(3).toBool() ? -128 : 0;
  const Ref x = call(F::round, m.in(0) * call(F::reciprocal, m.in(1))) + m.in(2);
  return cap_at(where(call(F::ge, x, low), x, m.value(low)), low + 255);
}

Ref dequantize(Maker& m) {
  return (m.in(0) - m.in(2)) * m.in(1);
}

Ref relu(Maker& m) {
  return floor_at(m.in(0), 0);
}
Ref threshold(Maker& m) {
  const Ref x = m.in(0);
  return where(call(F::le, x, m.number(1)), m.number(2), x);
}
Ref threshold_backward(Maker& m) {
  const Ref grad = m.in(0);
  return where(call(F::le, m.in(1), m.number(2)), zero_of(grad), grad);
}
Ref sigmoid_of(Maker& m) {
  return sigmoid(m.in(0));
}
Ref sigmoid_backward(Maker& m) {
  const Ref y = m.in(1);
  return m.in(0) * (1.0 - y) * y;
}
Ref tanh_backward(Maker& m) {
  const Ref y = m.in(1);
  return m.in(0) * (1.0 - y * y);
}
Ref silu(Maker& m) {
  const Ref x = m.in(0);
  return x / (1.0 + call(F::exp, -x));
}
Ref silu_backward(Maker& m) {
  const Ref x = m.in(1), y = sigmoid(x);
  return m.in(0) * y * (1.0 + x * (1.0 - y));
}

bool by_tanh(Maker& m, int argument) {
  return m.constant(argument).isString() && m.constant(argument).toStringRef() == "tanh";
}

constexpr double tanh_factor = M_SQRT2 * M_2_SQRTPI * 0.5, cubic_factor = 0.044715;

Ref gelu(Maker& m) {
  const Ref x = m.in(0);
  if (!by_tanh(m, 1)) return x * 0.5 * (1.0 + call(F::erf, x * M_SQRT1_2));
  const Ref inner = tanh_factor * (x + cubic_factor * (x * x * x));
  return 0.5 * x * (1.0 + call(F::tanh, inner));
}

Ref gelu_backward(Maker& m) {
  const Ref grad = m.in(0), x = m.in(1);
  if (!by_tanh(m, 2)) {
    const Ref below = 0.5 * (1.0 + call(F::erf, x * M_SQRT1_2));
    const Ref density = (M_2_SQRTPI * M_SQRT1_2 * 0.5) * call(F::exp, x * x * -0.5);
    return grad * (below + x * density);
  }
  const Ref curve = call(F::tanh, tanh_factor * (x + cubic_factor * (x * x * x)));
  const Ref left = 0.5 * (1.0 + curve);
  const Ref slope = tanh_factor * (1.0 + (3 * cubic_factor) * (x * x));
  return grad * (left + 0.5 * x * (1.0 - curve * curve) * slope);
}

Ref leaky_relu(Maker& m) {
  const Ref x = m.in(0);
  return where(call(F::gt, x, 0), x, x * m.number(1));
}
Ref leaky_relu_backward(Maker& m) {
  const Ref grad = m.in(0);
  return where(call(F::gt, m.in(1), 0), grad, grad * m.number(2));
}
/// The weight has one value, or one per channel.
Ref prelu(Maker& m) {
  const Ref x = m.in(0);
  return where(call(F::gt, x, 0), x, m.in(1) * x);
}
Ref elu(Maker& m) {
  const Ref x = m.in(0), below = call(F::expm1, x * m.number(3)) * (m.number(1) * m.number(2));
  return where(call(F::le, x, 0), below, x * m.number(2));
}
Ref elu_backward(Maker& m) {
  const Ref grad = m.in(0), x = m.in(5), height = m.number(1) * m.number(2), slope = grad * m.number(3);
  const bool from_result = m.constant(4).isBool() && m.constant(4).toBool();
  const Ref below = from_result ? slope * (x + height) : slope * height * call(F::exp, x * m.number(3));
  return where(call(F::gt, x, 0), grad * m.number(2), below);
}
Ref softplus(Maker& m) {
  const Ref x = m.in(0), scaled = x * m.number(1);
  return where(call(F::gt, scaled, m.number(2)), x, call(F::log1p, call(F::exp, scaled)) / m.number(1));
}
Ref softplus_backward(Maker& m) {
  const Ref grad = m.in(0), scaled = m.in(1) * m.number(2), power_of = call(F::exp, scaled);
  return where(call(F::gt, scaled, m.number(3)), grad, grad * power_of / (power_of + 1.0));
}
Ref hardtanh_backward(Maker& m) {
  const Ref grad = m.in(0), x = m.in(1);
  const Ref inside = call(F::logical_and, call(F::gt, x, m.number(2)), call(F::lt, x, m.number(3)));
  return where(inside, grad, zero_of(grad));
}
Ref hardsigmoid(Maker& m) {
  return cap_at(floor_at(m.in(0) + 3.0, 0), 6) / 6.0;
}
Ref hardswish(Maker& m) {
  const Ref x = m.in(0);
  return x * cap_at(floor_at(x + 3.0, 0), 6) / 6.0;
}
Ref dropout_backward(Maker& m) {
  return m.in(0) * m.in(1) * m.number(2);
}
Ref log_sigmoid_backward(Maker& m) {
  const Ref buffer = m.in(2), part = buffer / (buffer + 1.0);
  return m.in(0) * where(call(F::lt, m.in(1), 0), 1.0 - part, part);
}

/// The factor of a loss's gradient: the mean divides by the number of elements.
Ref loss_gradient(Maker& m, int reduction) {
  m.set_loops(m.operand(1)->geometry);
  const Ref grad = m.in(0);
  return m.constant(reduction).toInt() == at::Reduction::Mean ? grad / m.places(~uint64_t{0}) : grad;
}
Ref mse_loss_backward(Maker& m) {
  m.set_loops(m.operand(1)->geometry);
  const bool mean = m.constant(3).toInt() == at::Reduction::Mean;
  const double factor = mean ? 2 / m.places(~uint64_t{0}) : 2;
  return factor * (m.in(1) - m.in(2)) * m.in(0);
}
Ref smooth_l1_loss_backward(Maker& m) {
  const Ref grad = loss_gradient(m, 3), apart = m.in(1) - m.in(2), beta = m.number(4);
  const Ref below = call(F::le, apart, -beta), above = call(F::ge, apart, beta);
  return where(below, -grad, where(above, grad, grad * apart / beta));
}
Ref huber_loss_backward(Maker& m) {
  const Ref grad = loss_gradient(m, 3), apart = m.in(1) - m.in(2), delta = m.number(4);
  const Ref below = call(F::lt, apart, -delta), above = call(F::gt, apart, delta);
  return where(below, -grad * delta, where(above, grad * delta, grad * apart));
}
Ref binary_cross_entropy_backward(Maker& m) {
  const Ref grad = loss_gradient(m, 4), x = m.in(1);
  const Ref made = grad * (x - m.in(2)) / floor_at((1.0 - x) * x, 1e-12);
  return m.has(3) ? made * m.in(3) : made;
}

struct NamedFormula {
  std::string_view name;
  Formula formula;
};

constexpr NamedFormula named_formulas[] = {
    {"aten::add.Tensor", add},
    {"aten::add.Scalar", add},
    {"aten::sub.Tensor", sub},
    {"aten::sub.Scalar", sub},
    {"aten::rsub.Tensor", reversed_sub},
    {"aten::rsub.Scalar", reversed_sub},
    {"aten::mul.Tensor", mul},
    {"aten::mul.Scalar", mul},
    {"aten::div.Tensor", div},
    {"aten::div.Scalar", div},
    {"aten::addcmul", addcmul},
    {"aten::addcdiv", addcdiv},
    {"aten::lerp.Scalar", lerp},
    {"aten::lerp.Tensor", lerp},
    {"aten::clamp", clamp},
    {"aten::clamp.Tensor", clamp},
    {"aten::clamp_min", clamp},
    {"aten::clamp_min.Tensor", clamp},
    {"aten::clamp_max", binary<F::minimum>},
    {"aten::clamp_max.Tensor", binary<F::minimum>},
    {"aten::hardtanh", clamp},
    {"aten::pow.Tensor_Scalar", power},
    {"aten::pow.Tensor_Tensor", power},
    {"aten::square", square},
    {"aten::fill.Scalar", filled},
    {"aten::fill.Tensor", filled},
    {"aten::full_like", filled},
    {"aten::zero", zero},
    {"aten::where.self", chosen},
    {"aten::masked_fill.Scalar", masked_fill},
    {"aten::masked_fill.Tensor", masked_fill},
    {"aten::_to_copy", to_copy},
    {"aten::clone", same},
    {"aten::copy", copied},
    {"bellows::quantize", quantize},
    {"bellows::dequantize", dequantize},
    {"aten::neg", unary<F::neg>},
    {"aten::abs", unary<F::abs>},
    {"aten::sign", unary<F::sign>},
    {"aten::sgn", unary<F::sign>},
    {"aten::exp", unary<F::exp>},
    {"aten::exp2", unary<F::exp2>},
    {"aten::expm1", unary<F::expm1>},
    {"aten::log", unary<F::log>},
    {"aten::log2", unary<F::log2>},
    {"aten::log10", unary<F::log10>},
    {"aten::log1p", unary<F::log1p>},
    {"aten::sqrt", unary<F::sqrt>},
    {"aten::rsqrt", unary<F::rsqrt>},
    {"aten::reciprocal", unary<F::reciprocal>},
    {"aten::sin", unary<F::sin>},
    {"aten::cos", unary<F::cos>},
    {"aten::tan", unary<F::tan>},
    {"aten::asin", unary<F::asin>},
    {"aten::acos", unary<F::acos>},
    {"aten::atan", unary<F::atan>},
    {"aten::sinh", unary<F::sinh>},
    {"aten::cosh", unary<F::cosh>},
    {"aten::tanh", unary<F::tanh>},
    {"aten::erf", unary<F::erf>},
    {"aten::erfc", unary<F::erfc>},
    {"aten::floor", rounding<F::floor>},
    {"aten::ceil", rounding<F::ceil>},
    {"aten::round", rounding<F::round>},
    {"aten::trunc", rounding<F::trunc>},
    {"aten::maximum", binary<F::maximum>},
    {"aten::minimum", binary<F::minimum>},
    {"aten::atan2", binary<F::atan2>},
    {"aten::fmod.Tensor", binary<F::fmod>},
    {"aten::fmod.Scalar", binary<F::fmod>},
    {"aten::eq.Tensor", comparison<F::eq>},
    {"aten::eq.Scalar", comparison<F::eq>},
    {"aten::ne.Tensor", comparison<F::ne>},
    {"aten::ne.Scalar", comparison<F::ne>},
    {"aten::lt.Tensor", comparison<F::lt>},
    {"aten::lt.Scalar", comparison<F::lt>},
    {"aten::le.Tensor", comparison<F::le>},
    {"aten::le.Scalar", comparison<F::le>},
    {"aten::gt.Tensor", comparison<F::gt>},
    {"aten::gt.Scalar", comparison<F::gt>},
    {"aten::ge.Tensor", comparison<F::ge>},
    {"aten::ge.Scalar", comparison<F::ge>},
    {"aten::logical_not", [](Maker& m) { return call(F::logical_not, as_bool(m, 0)); }},
    {"aten::logical_and", logical<F::logical_and>},
    {"aten::logical_or", logical<F::logical_or>},
    {"aten::logical_xor", logical<F::logical_xor>},
    {"aten::bitwise_not", unary<F::bitwise_not>},
    {"aten::bitwise_and.Tensor", binary<F::bitwise_and>},
    {"aten::bitwise_or.Tensor", binary<F::bitwise_or>},
    {"aten::bitwise_xor.Tensor", binary<F::bitwise_xor>},
    {"aten::isnan", [](Maker& m) { return call(F::isnan, m.cast(m.raw(0), compute_type(m.type_of(m.raw(0))))); }},
    {"aten::isinf", is_infinite},
    {"aten::relu", relu},
    {"aten::threshold", threshold},
    {"aten::threshold_backward", threshold_backward},
    {"aten::sigmoid", sigmoid_of},
    {"aten::sigmoid_backward", sigmoid_backward},
    {"aten::tanh_backward", tanh_backward},
    {"aten::silu", silu},
    {"aten::silu_backward", silu_backward},
    {"aten::gelu", gelu},
    {"aten::gelu_backward", gelu_backward},
    {"aten::leaky_relu", leaky_relu},
    {"aten::leaky_relu_backward", leaky_relu_backward},
    {"aten::_prelu_kernel", prelu},
    {"aten::elu", elu},
    {"aten::elu_backward", elu_backward},
    {"aten::softplus", softplus},
    {"aten::softplus_backward", softplus_backward},
    {"aten::hardtanh_backward", hardtanh_backward},
    {"aten::hardsigmoid", hardsigmoid},
    {"aten::hardswish", hardswish},
    {"aten::native_dropout_backward", dropout_backward},
    {"aten::log_sigmoid_backward", log_sigmoid_backward},
    {"aten::mse_loss_backward", mse_loss_backward},
    {"aten::smooth_l1_loss_backward", smooth_l1_loss_backward},
    {"aten::huber_loss_backward", huber_loss_backward},
    {"aten::binary_cross_entropy_backward", binary_cross_entropy_backward},
};

Formula formula_of(std::string_view name) {
  static const auto known = [] {
    std::unordered_map<std::string_view, Formula> all;
    for (const NamedFormula& one : named_formulas) all.emplace(one.name, one.formula);
    return all;
  }();
  const auto found = known.find(name);
  return found == known.end() ? nullptr : found->second;
}

/// True if the formula is also correct for integers.
bool for_integers(std::string_view name) {
  return name.find("backward") == std::string_view::npos && name != "aten::reciprocal" && name != "aten::rsqrt" &&
         name.substr(0, 10) != "aten::lerp" && name.substr(0, 10) != "aten::fmod" &&
         name.substr(0, 12) != "aten::addcdiv";
}

bool write_pointwise(Maker& maker, std::string_view name) {
  const Formula formula = formula_of(name);
  if (!formula || maker.instruction.results.size() != 1) return false;
  if (maker.result().value == no_value) return false;
  maker.set_loops(maker.result().geometry);
  const c10::ScalarType result_type = maker.result().geometry.dtype.toScalarType();
  const c10::ScalarType common = common_type(maker.instruction);
  if (c10::isFloatingType(result_type))
    // Operators with a double operand and a float result compute in double
    maker.type = compute_type(c10::promoteTypes(result_type, common));
  else if (!for_integers(name))
    return false;
  maker.store(0, formula(maker));
  return true;
}

/// Writes the gradients of prelu. That of the weight has the sizes of the input; another operator adds it up.
bool write_prelu_backward(Maker& m, std::string_view name) {
  if (name != "aten::_prelu_kernel_backward" || !m.has(0) || !m.has(1) || !m.has(2)) return false;
  m.set_loops(m.operand(1)->geometry);
  const Ref grad = m.in(0), x = m.in(1), above = call(F::gt, x, 0);
  m.store(0, where(above, grad, m.in(2) * grad));
  m.store(1, where(above, zero_of(grad), x * grad));
  return true;
}

/// Writes the concatenation of a few tensors of equal sizes along the last dim, such as the gradients of the gates of a
/// recurrent cell. Each iteration stores one element of each tensor.
bool write_concatenation(Maker& m, std::string_view name) {
  constexpr size_t most_parts = 8;
  if (name != "aten::cat" || !m.instruction.updates.empty()) return false;
  const auto& parts = m.instruction.arguments[0].operands;
  Geometry part = m.result().geometry;
  const auto rank = static_cast<int64_t>(part.sizes.size());
  const c10::IValue& dim = m.constant(1);
  if (rank < 2 || parts.size() < 2 || parts.size() > most_parts || !dim.isInt() ||
      (dim.toInt() != rank - 1 && dim.toInt() != -1) || !c10::isFloatingType(part.dtype.toScalarType()))
    return false;
  part.sizes.back() /= static_cast<int64_t>(parts.size());
  for (const Operand& one : parts) {
    if (one.value == no_value || one.geometry.sizes != part.sizes || one.geometry.dtype != part.dtype) return false;
  }
  m.type = compute_type(part.dtype.toScalarType());
  m.set_loops(part);
  for (size_t i = 0; i < parts.size(); ++i) {
    m.store_part(0, part, m.cast(m.raw_item(0, i), m.type));
    part.offset += part.sizes.back() * part.strides.back();
  }
  return true;
}

/// Returns: the dims of a reduction as a mask: those of an argument, or all if it is omitted
uint64_t dims_of(const Maker& m, int argument) {
  const size_t rank = m.expression.loops.size();
  const uint64_t all = (uint64_t{1} << rank) - 1;
  if (argument < 0 || m.is_none(argument)) return all;
  const c10::IValue& value = m.constant(argument);
  uint64_t result = 0;
  const auto take = [&](int64_t dim) {
    if (rank) result |= uint64_t{1} << (dim < 0 ? dim + static_cast<int64_t>(rank) : dim);
  };
  if (value.isInt()) {
    take(value.toInt());
    return result;
  }
  for (const int64_t dim : value.toDimVector()) take(dim);
  return result ? result : all;
}

/// Returns: the loops along which the dims of a reduction's result lie
std::vector<int> loops_left(const Maker& m, uint64_t reduced, size_t rank) {
  std::vector<int> loops;
  const bool keeps = rank == m.expression.loops.size();
  for (size_t i = 0; i < m.expression.loops.size(); ++i) {
    if (keeps || !(reduced >> i & 1)) loops.push_back(static_cast<int>(i));
  }
  return loops;
}

void store_reduced(Maker& m, size_t which, Ref term, uint64_t reduced) {
  const size_t rank = m.result(which).geometry.sizes.size();
  const auto loops = loops_left(m, reduced, rank);
  if (loops.size() != rank) m.bad = true;
  if (!m.bad) m.store(which, term, loops);
}

bool begin(Maker& m) {
  if (!m.has(0) || m.operand(0)->geometry.sizes.size() > 60) return false;
  m.set_loops(m.operand(0)->geometry);
  return true;
}

void sum(Maker& m, int dims_argument, bool mean) {
  const uint64_t dims = dims_of(m, dims_argument);
  const Ref total = m.reduce(F::sum, m.in(0), dims);
  store_reduced(m, 0, mean ? total / m.places(dims) : total, dims);
}

void extreme(Maker& m, F function, int dims_argument) {
  const uint64_t dims = dims_of(m, dims_argument);
  store_reduced(m, 0, m.reduce(function, m.in(0), dims), dims);
}

void extremes(Maker& m) {
  const uint64_t dims = dims_of(m, 1);
  const Ref x = m.in(0);
  store_reduced(m, 0, m.reduce(F::min, x, dims), dims);
  store_reduced(m, 1, m.reduce(F::max, x, dims), dims);
}

/// Returns: the mean and the sum of squared deviations
std::pair<Ref, Ref> moments(Maker& m, Ref x, uint64_t dims) {
  const Ref mean = m.reduce(F::sum, x, dims) / m.places(dims), apart = x - mean;
  return {mean, m.reduce(F::sum, apart * apart, dims)};
}

void variance(Maker& m, std::string_view name) {
  const uint64_t dims = dims_of(m, 1);
  const c10::IValue& given = m.constant(2);
  if (!c10::isFloatingType(m.type) || m.instruction.arguments[2].number >= 0) {
    m.bad = true;
    return;
  }
  const double correction = given.isNone() ? 1 : given.isInt() ? static_cast<double>(given.toInt()) : given.toDouble();
  const auto two = moments(m, m.in(0), dims);
  const Ref spread = two.second / std::max(0.0, m.places(dims) - correction);
  store_reduced(m, 0, name == "aten::std.correction" ? call(F::sqrt, spread) : spread, dims);
  if (name == "aten::var_mean.correction") store_reduced(m, 1, two.first, dims);
}

void softmax(Maker& m, bool logarithm) {
  const uint64_t dims = dims_of(m, 1);
  const Ref x = m.in(0), apart = x - m.reduce(F::max, x, dims), power = call(F::exp, apart);
  const Ref total = m.reduce(F::sum, power, dims);
  m.store(0, logarithm ? apart - call(F::log, total) : power / total);
}

void softmax_backward(Maker& m, bool logarithm) {
  const uint64_t dims = dims_of(m, 2);
  const Ref grad = m.in(0), y = m.in(1);
  if (logarithm) return m.store(0, grad - call(F::exp, y) * m.reduce(F::sum, grad, dims));
  const Ref weighed = grad * y;
  m.store(0, weighed - y * m.reduce(F::sum, weighed, dims));
}

/// Returns: log(sigmoid(x)) and exp(−|x|)
std::pair<Ref, Ref> log_sigmoid(Ref x) {
  const Ref power = call(F::exp, -call(F::abs, x));
  return {cap_at(x, 0) - call(F::log1p, power), power};
}

Ref squared_difference(Maker& m) {
  const Ref apart = m.in(0) - m.in(1);
  return apart * apart;
}
Ref smooth_l1(Maker& m) {
  const Ref apart = call(F::abs, m.in(0) - m.in(1)), beta = m.number(3);
  return where(call(F::lt, apart, beta), 0.5 * apart * apart / beta, apart - 0.5 * beta);
}
Ref huber(Maker& m) {
  const Ref apart = call(F::abs, m.in(0) - m.in(1)), delta = m.number(3);
  return where(call(F::le, apart, delta), 0.5 * apart * apart, delta * (apart - 0.5 * delta));
}
Ref cross_entropy_of_logits(Maker& m) {
  const Ref x = m.in(0), target = m.in(1), log_of = log_sigmoid(x).first;
  const Ref weighed = m.has(3) ? log_of * ((m.in(3) - 1.0) * target + 1.0) : log_of;
  const Ref loss = (1.0 - target) * x - weighed;
  return m.has(2) ? loss * m.in(2) : loss;
}

/// A loss that is a sum or mean over the elements. Losses that check the values of their inputs are not in this list.
struct Loss {
  std::string_view name;
  int reduction;  ///< argument
  Formula element;
};
constexpr Loss losses[] = {{"aten::mse_loss", 2, squared_difference},
                           {"aten::smooth_l1_loss", 2, smooth_l1},
                           {"aten::huber_loss", 2, huber},
                           {"aten::binary_cross_entropy_with_logits", 4, cross_entropy_of_logits}};

bool write_loss(Maker& m, std::string_view name) {
  const auto* const loss =
      std::find_if(std::begin(losses), std::end(losses), [&](const Loss& one) { return one.name == name; });
  if (loss == std::end(losses) || !m.has(1) || m.operand(1)->geometry.sizes != m.operand(0)->geometry.sizes ||
      !c10::isFloatingType(m.type))
    return false;
  const Ref element = loss->element(m);
  const int64_t reduction = m.constant(loss->reduction).toInt();
  if (reduction == at::Reduction::None) {
    m.store(0, element);
    return true;
  }
  const uint64_t dims = dims_of(m, -1);
  const Ref total = m.reduce(F::sum, element, dims);
  store_reduced(m, 0, reduction == at::Reduction::Mean ? total / m.places(dims) : total, dims);
  return true;
}

/// Writes log(sigmoid(x)), and exp(−|x|) for the gradient.
bool write_log_sigmoid(Maker& m, std::string_view name) {
  if (name != "aten::log_sigmoid_forward" || !c10::isFloatingType(m.type)) return false;
  const auto both = log_sigmoid(m.in(0));
  m.store(0, both.first);
  if (m.result(1).value != no_value) m.store(1, both.second);
  return true;
}

bool write_sum(Maker& m, std::string_view name) {
  if (name == "aten::sum") {
    sum(m, -1, false);
  } else if (name == "aten::mean") {
    sum(m, -1, true);
  } else if (name == "aten::sum.dim_IntList") {
    sum(m, 1, false);
  } else if (name == "aten::mean.dim") {
    sum(m, 1, true);
  } else if (name == "aten::amax") {
    extreme(m, F::max, 1);
  } else if (name == "aten::amin") {
    extreme(m, F::min, 1);
  } else if (name == "aten::aminmax") {
    extremes(m);
  } else if (name == "aten::max") {
    extreme(m, F::max, -1);
  } else if (name == "aten::min") {
    extreme(m, F::min, -1);
  } else if (name == "aten::var.correction" || name == "aten::std.correction" || name == "aten::var_mean.correction") {
    variance(m, name);
  } else {
    return false;
  }
  return true;
}

bool write_reduction(Maker& m, std::string_view name) {
  if (m.instruction.arguments.empty() || !m.instruction.arguments[0].is_tensors() || !begin(m)) return false;
  if (write_sum(m, name) || write_loss(m, name) || write_log_sigmoid(m, name)) return true;
  if (name == "aten::_softmax" || name == "aten::_log_softmax") {
    softmax(m, name == "aten::_log_softmax");
  } else if ((name == "aten::softmax.int" || name == "aten::log_softmax.int") &&
             m.is_none(2)) {  // composite in inference mode
    softmax(m, name == "aten::log_softmax.int");
  } else if (name == "aten::_softmax_backward_data" || name == "aten::_log_softmax_backward_data") {
    softmax_backward(m, name == "aten::_log_softmax_backward_data");
  } else {
    return false;
  }
  return true;
}

}  // namespace
}  // namespace detail

std::optional<Expression> expression_of(const Instruction& instruction) {
  if (!instruction.op || instruction.kernel || instruction.group || instruction.results.empty()) return std::nullopt;
  for (const auto& argument : instruction.arguments) {
    for (const Operand& operand : argument.operands) {
      if (operand.value != no_value && !detail::is_dense(operand.geometry)) return std::nullopt;
    }
  }
  for (const auto& result : instruction.results) {
    if (result.list || (result.operands[0].value != no_value && !detail::is_dense(result.operands[0].geometry)))
      return std::nullopt;
  }
  const std::string name = detail::without_underscore(*instruction.op);
  detail::Maker maker(instruction);
  if (!detail::write_pointwise(maker, name) && !detail::write_prelu_backward(maker, name) &&
      !detail::write_fake_quantize(maker, name) && !detail::write_reduction(maker, name) &&
      !detail::write_normalization(maker, name) && !detail::write_concatenation(maker, name))
    return std::nullopt;
  if (maker.bad || maker.expression.stores.empty()) return std::nullopt;
  for (const int64_t places : maker.expression.loops) {
    if (places == 0) return std::nullopt;
  }
  return std::move(maker.expression);
}

}  // namespace bellows::graph
