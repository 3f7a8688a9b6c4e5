#include <cmath>
#include <unordered_map>

#include "bellows/graph/passes/fusible_impl.h"

namespace bellows::graph::detail {
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

/// In the type that the operands have in common, not in that of the result.
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

/// Copies: the result's type is the store's.
Ref same(Maker& m) {
  m.type = compute_type(m.operand(0)->geometry.dtype.toScalarType());
  return m.in(0);
}

/// A cast that somebody wrote rounds, also where it is cast back.
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
Ref mse_loss_backward(Maker& m) {
  m.set_loops(m.operand(1)->geometry);
  const bool mean = m.constant(3).toInt() == 1;
  const double factor = mean ? 2 / m.places(~uint64_t{0}) : 2;
  return factor * (m.in(1) - m.in(2)) * m.in(0);
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
    {"aten::zero", zero},
    {"aten::where.self", chosen},
    {"aten::masked_fill.Scalar", masked_fill},
    {"aten::masked_fill.Tensor", masked_fill},
    {"aten::_to_copy", to_copy},
    {"aten::clone", same},
    {"aten::copy", copied},
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
    {"aten::elu", elu},
    {"aten::elu_backward", elu_backward},
    {"aten::softplus", softplus},
    {"aten::softplus_backward", softplus_backward},
    {"aten::hardtanh_backward", hardtanh_backward},
    {"aten::hardsigmoid", hardsigmoid},
    {"aten::hardswish", hardswish},
    {"aten::native_dropout_backward", dropout_backward},
    {"aten::mse_loss_backward", mse_loss_backward},
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

/// Formulas that mean what they say for integers, too.
bool for_integers(std::string_view name) {
  return name.find("backward") == std::string_view::npos && name != "aten::reciprocal" && name != "aten::rsqrt" &&
         name.substr(0, 10) != "aten::lerp" && name.substr(0, 10) != "aten::fmod" &&
         name.substr(0, 12) != "aten::addcdiv";
}

}  // namespace

bool write_pointwise(Maker& maker, std::string_view name) {
  const Formula formula = formula_of(name);
  if (!formula || maker.instruction.results.size() != 1) return false;
  if (maker.result().value == no_value) return false;
  maker.set_loops(maker.result().geometry);
  const c10::ScalarType result_type = maker.result().geometry.dtype.toScalarType();
  const c10::ScalarType common = common_type(maker.instruction);
  if (c10::isFloatingType(result_type))
    maker.type = compute_type(c10::promoteTypes(result_type, common));  // into floats from doubles is done in doubles
  else if (!for_integers(name))
    return false;
  maker.store(0, formula(maker));
  return true;
}

}  // namespace bellows::graph::detail
