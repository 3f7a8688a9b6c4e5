#include "bellows/graph/passes/fake_quantize_formulas.h"

#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>

namespace bellows::graph::detail {
namespace {

using F = Function;

/// Integers up to this size, and their differences, are exact in float.
constexpr double largest_integer = 1 << 23;

bool has_type(const Maker& m, int argument, std::initializer_list<c10::ScalarType> types) {
  if (!m.has(argument)) return false;
  for (const c10::ScalarType type : types) {
    if (m.operand(argument)->geometry.dtype.toScalarType() == type) return true;
  }
  return false;
}

struct Range {
  double low = 0, high = 0;
};

std::optional<Range> range_of(const Maker& m, int argument) {
  const c10::IValue &low = m.constant(argument), &high = m.constant(argument + 1);
  if (!low.isInt() || !high.isInt()) return std::nullopt;
  const Range range{static_cast<double>(low.toInt()), static_cast<double>(high.toInt())};
  if (std::abs(range.low) > largest_integer || std::abs(range.high) > largest_integer) return std::nullopt;
  return range;
}

/// Stores the fake-quantized input and the mask of the values that are in range.
/// Params: first_too_large – integers from here on become the smallest one, like NaN
///         enabled – whether the operator quantizes; a term of -1: always
void store_quantized(Maker& m, Ref scale, Ref zero_point, Range range, double first_too_large, Ref enabled) {
  const Ref x = m.in(0), integer = call(F::round, x * call(F::reciprocal, scale)) + zero_point;
  Ref inside = call(F::logical_and, call(F::ge, integer, range.low), call(F::le, integer, range.high));
  Ref above = call(F::gt, integer, range.high);
  if (std::isfinite(first_too_large)) above = call(F::logical_and, above, call(F::lt, integer, first_too_large));
  const Ref bounded = where(inside, integer, where(above, m.value(range.high), m.value(range.low)));
  Ref result = (bounded - zero_point) * scale;
  if (enabled.term >= 0) {
    result = where(enabled, result, x);
    inside = call(F::logical_or, call(F::logical_not, enabled), inside);
  }
  m.store(0, result);
  m.store(1, inside);
}

/// Returns one number of a range [2].
Ref bound_of(Maker& m, int argument, int64_t which) {
  Geometry one = m.operand(argument)->geometry;
  one.offset += which * one.strides[0];
  one.sizes.clear();
  one.strides.clear();
  return m.cast(m.raw_as(argument, one, {}), m.type);
}

Ref at_least_smallest_step(Ref scale) {
  return call(F::maximum, scale, std::numeric_limits<float>::epsilon());
}

/// The operators of quant/training/range_operators.h.
bool write_moving_range(Maker& m) {
  if (!has_type(m, 0, {c10::kFloat}) || !m.has(1) || m.operand(1)->geometry.sizes.empty()) return false;
  const Geometry& x = m.operand(1)->geometry;
  if (x.sizes.size() > 60 || !c10::isFloatingType(x.dtype.toScalarType()) || x.dtype.toScalarType() == c10::kDouble)
    return false;
  m.set_loops(x);
  const uint64_t all = (uint64_t{1} << x.sizes.size()) - 1;
  for (int64_t which = 0; which < 2; ++which) {
    const Ref batch = m.reduce(which == 0 ? F::min : F::max, m.in(1), all), old = bound_of(m, 0, which);
    const Ref is_first = call(F::eq, call(F::abs, old), std::numeric_limits<double>::infinity());
    Geometry part = m.result().geometry;
    part.offset += which * part.strides[0];
    part.sizes.clear();
    part.strides.clear();
    m.store_part(0, part, where(is_first, batch, old + m.number(2) * (batch - old)));
  }
  return true;
}

bool write_range_parameters(Maker& m) {
  constexpr double steps = 255, middle = 128;
  if (!has_type(m, 0, {c10::kFloat}) || !m.constant(1).isBool()) return false;
  const Ref low = bound_of(m, 0, 0), high = bound_of(m, 0, 1);
  const Ref below = call(F::minimum, low, 0), above = call(F::maximum, high, 0);
  Ref scale = at_least_smallest_step((above - below) / steps);
  const Ref ratio = below / scale;
  const Ref bounded = call(F::minimum, call(F::maximum, -call(F::round, ratio), 0), steps);
  Ref zero_point = where(call(F::isnan, ratio), m.value(0), bounded);  // libtorch converts NaN to the smallest int32
  if (m.constant(1).toBool()) {
    const Ref negative = call(F::lt, low, 0);
    scale = where(negative, at_least_smallest_step(call(F::maximum, -below, above) / (steps / 2)), scale);
    zero_point = where(negative, m.value(middle), zero_point);
  }
  m.store(0, scale);
  m.store(1, zero_point);
  return true;
}

bool write_row_parameters(Maker& m) {
  if (!m.has(0)) return false;
  const Geometry& weight = m.operand(0)->geometry;
  if (weight.sizes.empty() || weight.sizes.size() > 60 || weight.dtype.toScalarType() == c10::kDouble) return false;
  m.set_loops(weight);
  const Ref x = m.in(0);
  const uint64_t inner = (uint64_t{1} << weight.sizes.size()) - 2;
  const Ref below = call(F::minimum, m.reduce(F::min, x, inner), 0),
            above = call(F::maximum, m.reduce(F::max, x, inner), 0);
  constexpr int rows[] = {0};
  m.store(0, at_least_smallest_step(call(F::maximum, -below, above) / m.number(1)), rows);
  m.store(1, m.value(0), rows);
  return true;
}

bool write_quantization(Maker& m, bool per_tensor) {
  const auto range = range_of(m, 4);
  if (!range || !has_type(m, 0, {c10::kFloat}) || !has_type(m, 1, {c10::kFloat}) ||
      !has_type(m, 2, {c10::kInt, c10::kLong}))
    return false;
  m.set_loops(m.operand(0)->geometry);
  if (per_tensor) {
    if (!m.has(3)) return false;
    constexpr double infinity = std::numeric_limits<double>::infinity();
    store_quantized(m, m.in(1), m.in(2), *range, infinity, m.cast(m.raw(3), c10::kBool));
    return true;
  }
  const c10::IValue& axis = m.constant(3);
  if (!axis.isInt() || axis.toInt() < 0) return false;
  const int loop[] = {static_cast<int>(axis.toInt())};
  // The kernel for channels converts to int64, where NaN and numbers from 2^63 on become the smallest integer.
  store_quantized(m, m.in(1, loop), m.in(2, loop), *range, 0x1p63, {});
  return true;
}

bool write_per_tensor(Maker& m) {
  return write_quantization(m, true);
}

bool write_per_channel(Maker& m) {
  return write_quantization(m, false);
}

}  // namespace

bool write_fake_quantize(Maker& m, std::string_view name) {
  static const std::unordered_map<std::string_view, bool (*)(Maker&)> known{
      {"aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", write_per_tensor},
      {"aten::fake_quantize_per_channel_affine_cachemask", write_per_channel},
      {"bellows::moving_range", write_moving_range},
      {"bellows::range_parameters", write_range_parameters},
      {"bellows::row_parameters", write_row_parameters},
  };
  const auto found = known.find(name);
  if (found == known.end()) return false;
  m.type = c10::kFloat;
  return found->second(m);
}

}  // namespace bellows::graph::detail
