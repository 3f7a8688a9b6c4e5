#include "bellows/graph/passes/fake_quantize_formulas.h"

#include <cmath>
#include <limits>
#include <optional>

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

}  // namespace

bool write_fake_quantize(Maker& m, std::string_view name) {
  const bool per_tensor = name == "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams";
  if (!per_tensor && name != "aten::fake_quantize_per_channel_affine_cachemask") return false;
  const auto range = range_of(m, 4);
  if (!range || !has_type(m, 0, {c10::kFloat}) || !has_type(m, 1, {c10::kFloat}) ||
      !has_type(m, 2, {c10::kInt, c10::kLong}))
    return false;
  m.type = c10::kFloat;
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

}  // namespace bellows::graph::detail
