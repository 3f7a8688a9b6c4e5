#include "bellows/graph/passes/expression_maker.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <optional>

namespace bellows::graph::detail {
namespace {

bool is_comparison(Function function) {
  return (function >= Function::eq && function <= Function::logical_xor) || function == Function::logical_not ||
         function == Function::isnan || function == Function::any || function == Function::all;
}

/// Returns: a constant number as double; none if it would lose digits
std::optional<double> exact_number(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isBool()) return value.toBool();
  constexpr int64_t most = int64_t{1} << 53;
  if (!value.isInt() || value.toInt() < -most || value.toInt() > most) return std::nullopt;
  return static_cast<double>(value.toInt());
}

}  // namespace

bool is_dense(const Geometry& geometry) {
  return geometry.device.is_cpu() && is_known_type(geometry.dtype.toScalarType()) &&
         !geometry.keys.has(c10::DispatchKey::Conjugate) && !geometry.keys.has(c10::DispatchKey::Negative);
}

std::string without_underscore(const OperatorFacts& op) {
  if (op.writes.size() != 1 || op.writes[0] != 0) return op.name;
  const size_t end = std::min(op.name.find('.'), op.name.size());
  if (end == 0 || op.name[end - 1] != '_') return op.name;
  return op.name.substr(0, end - 1) + op.name.substr(end);
}

c10::ScalarType common_type(const Instruction& instruction) {
  // Tensors with dims take precedence over 0-dimensional tensors, and these over numbers, within floating-point or
  // integral types.
  std::array<c10::ScalarType, 3> found{c10::ScalarType::Undefined, c10::ScalarType::Undefined,
                                       c10::ScalarType::Undefined};
  const auto take = [&](size_t rank, c10::ScalarType type) {
    found[rank] = found[rank] == c10::ScalarType::Undefined ? type : c10::promoteTypes(found[rank], type);
  };
  for (const auto& argument : instruction.arguments) {
    for (const Operand& operand : argument.operands) {
      if (operand.value == no_value) continue;
      const Geometry& seen = operand.geometry;
      take(seen.wrapped_number ? 2 : seen.sizes.empty() ? 1 : 0, seen.dtype.toScalarType());
    }
    if (argument.kind == OperatorFacts::Kind::number && !argument.constant.isNone() && !argument.constant.isList()) {
      take(2, argument.constant.isBool()     ? c10::kBool
              : argument.constant.isDouble() ? instruction.default_dtype
                                             : c10::kLong);
    }
  }
  c10::ScalarType result = found[0];
  for (size_t rank = 1; rank < 3; ++rank) {
    const c10::ScalarType lower = found[rank];
    if (lower == c10::ScalarType::Undefined) continue;
    const auto kind = [](c10::ScalarType type) {
      return type == c10::kBool ? 0 : c10::isIntegralType(type, true) ? 1 : 2;
    };
    if (result == c10::ScalarType::Undefined || kind(lower) > kind(result)) {
      result = rank == 2 && lower == c10::kDouble ? instruction.default_dtype : lower;
    }
  }
  return result == c10::ScalarType::Undefined ? c10::kFloat : result;
}

Maker::Maker(const Instruction& one) : instruction(one) {
  if (!one.results.empty() && one.results[0].operands[0].value != no_value)
    type = compute_type(result().geometry.dtype.toScalarType());
}

const Operand* Maker::operand(int argument) const {
  const auto& operands = instruction.arguments[argument].operands;
  return operands.empty() || operands[0].value == no_value ? nullptr : &operands[0];
}

bool Maker::is_none(int argument) const {
  const auto& one = instruction.arguments[argument];
  return one.number < 0 && !one.is_tensors() && one.constant.isNone();
}

int Maker::first_operand(int argument) const {
  int count = 0;
  for (int i = 0; i < argument; ++i) count += static_cast<int>(instruction.arguments[i].operands.size());
  return count;
}

std::vector<int> Maker::last_loops(const Geometry& geometry) {
  const int extra = static_cast<int>(expression.loops.size()) - static_cast<int>(geometry.sizes.size());
  bad = bad || extra < 0;
  std::vector<int> loops(geometry.sizes.size());
  for (size_t i = 0; i < loops.size(); ++i) loops[i] = std::max(0, extra) + static_cast<int>(i);
  return loops;
}

Term::Numbers Maker::strides(const Geometry& geometry, Loops loops) {
  Numbers result(expression.loops.size(), 0);
  for (size_t i = 0; i < loops.size(); ++i) {
    const auto loop = static_cast<size_t>(loops[i]);
    if (geometry.sizes[i] == 1) continue;
    if (loop >= result.size() || geometry.sizes[i] != expression.loops[loop]) {
      bad = true;
      return result;
    }
    result[loop] = geometry.strides[i];
  }
  return result;
}

Ref Maker::add(Term term) {
  for (size_t i = expression.terms.size(); i-- > 0;) {
    if (expression.terms[i] == term) return {this, static_cast<int>(i)};
  }
  expression.terms.push_back(std::move(term));
  return {this, static_cast<int>(expression.terms.size()) - 1};
}

Ref Maker::raw(int argument) {
  const Operand* const one = operand(argument);
  if (one) return raw(argument, last_loops(one->geometry));
  bad = true;
  return value(0);
}

Ref Maker::raw(int argument, Loops loops) {
  const Operand* const one = operand(argument);
  if (!one) {
    bad = true;
    return value(0);
  }
  return raw_as(argument, one->geometry, loops);
}

Ref Maker::raw_as(int argument, const Geometry& seen, Loops loops) {
  return add({.function = Function::load,
              .type = seen.dtype.toScalarType(),
              .index = first_operand(argument),
              .strides = strides(seen, loops),
              .offset = seen.offset});
}

Ref Maker::raw_item(int argument, size_t item) {
  const Geometry& seen = instruction.arguments[argument].operands[item].geometry;
  return add({.function = Function::load,
              .type = seen.dtype.toScalarType(),
              .index = first_operand(argument) + static_cast<int>(item),
              .strides = strides(seen, last_loops(seen)),
              .offset = seen.offset});
}

Ref Maker::number(int argument) {
  const auto& one = instruction.arguments[argument];
  if (one.number >= 0) {
    bad = bad || c10::isIntegralType(type, true);  // kernels get numbers as doubles, which hold at most 53 bits
    return add({.function = Function::number, .type = type, .index = argument});
  }
  const auto exact = exact_number(one.constant);
  bad = bad || !exact;
  return value(exact.value_or(0));
}

Ref Maker::cast(Ref term, c10::ScalarType to) {
  const c10::ScalarType from = type_of(term);
  if (from == to) return term;
  if (is_constant(term) && to != c10::kBool && c10::isFloatingType(to))
    return add({.function = Function::constant, .type = to, .value = constant_of(term)});
  return add({.function = Function::cast, .type = to, .terms = {term.term, -1, -1}});
}

Ref Maker::apply(Function function, std::initializer_list<Ref> terms) {
  Term term{.function = function};
  size_t at = 0;
  for (const Ref& one : terms) term.terms[at++] = one.term;
  const Ref& last = *(terms.end() - 1);
  term.type = is_comparison(function) ? c10::kBool : type_of(last);
  return add(term);
}

Ref Maker::reduce(Function function, Ref one, uint64_t loops) {
  Term term{.function = function, .type = type_of(one), .terms = {one.term, -1, -1}, .reduced = loops};
  if (is_comparison(function)) term.type = c10::kBool;
  return add(term);
}

double Maker::places(uint64_t loops) const {
  double count = 1;
  for (size_t i = 0; i < expression.loops.size(); ++i) {
    if (loops >> i & 1) count *= static_cast<double>(expression.loops[i]);
  }
  return count;
}

void Maker::keep(int index, bool update, const Operand& place, Ref term, Loops loops) {
  const c10::ScalarType memory = place.geometry.dtype.toScalarType();
  expression.stores.push_back({.term = cast(term, compute_type(memory)).term,
                               .index = index,
                               .update = update,
                               .type = memory,
                               .strides = strides(place.geometry, loops),
                               .offset = place.geometry.offset});
}

void Maker::store(size_t which, Ref term) {
  if (instruction.results[which].operands[0].value == no_value) return;
  store(which, term, last_loops(result(which).geometry));
}

void Maker::store(size_t which, Ref term, Loops loops) {
  const Operand& one = result(which);
  if (one.value == no_value) return;
  for (const int64_t size : one.geometry.sizes) {
    if (size == 0) return;
  }
  for (const auto& update : instruction.updates) {
    if (update.after != one.value) continue;
    int index = 0;
    for (const auto& argument : instruction.arguments) {
      for (const Operand& operand : argument.operands) {
        if (operand.value == update.before) return keep(index, true, one, term, loops);
        ++index;
      }
    }
    bad = true;
    return;
  }
  keep(static_cast<int>(which), false, one, term, loops);
}

void Maker::store_part(size_t which, const Geometry& part, Ref term) {
  store_part(which, part, term, last_loops(part));
}

void Maker::store_part(size_t which, const Geometry& part, Ref term, Loops loops) {
  keep(static_cast<int>(which), false, {result(which).value, part}, term, loops);
}

void Maker::update(int argument, Ref term, Loops loops) {
  const Operand* const one = operand(argument);
  if (!one) return;
  for (const auto& each : instruction.updates) {
    if (each.before == one->value) return keep(first_operand(argument), true, *one, term, loops);
  }
}

namespace {

bool is_exactly(Ref term, double number) {
  return term.maker->is_constant(term) && term.maker->constant_of(term) == number;
}

}  // namespace

Ref operator+(Ref a, Ref b) {
  return a.maker->apply(Function::add, {a, b});
}
Ref operator-(Ref a, Ref b) {
  return a.maker->apply(Function::sub, {a, b});
}
Ref operator*(Ref a, Ref b) {
  return is_exactly(b, 1) ? a : is_exactly(a, 1) ? b : a.maker->apply(Function::mul, {a, b});
}
Ref operator/(Ref a, Ref b) {
  return is_exactly(b, 1) ? a : a.maker->apply(Function::div, {a, b});
}
Ref operator-(Ref a) {
  return a.maker->apply(Function::neg, {a});
}
Ref operator+(Ref a, double b) {
  return a + a.maker->value(b);
}
Ref operator-(Ref a, double b) {
  return a - a.maker->value(b);
}
Ref operator*(Ref a, double b) {
  return a * a.maker->value(b);
}
Ref operator/(Ref a, double b) {
  return a / a.maker->value(b);
}
Ref operator+(double a, Ref b) {
  return b.maker->value(a) + b;
}
Ref operator-(double a, Ref b) {
  return b.maker->value(a) - b;
}
Ref operator*(double a, Ref b) {
  return b.maker->value(a) * b;
}
Ref operator/(double a, Ref b) {
  return b.maker->value(a) / b;
}
Ref call(Function function, Ref a) {
  return a.maker->apply(function, {a});
}
Ref call(Function function, Ref a, Ref b) {
  return a.maker->apply(function, {a, b});
}
Ref call(Function function, Ref a, double b) {
  return call(function, a, a.maker->value(b));
}
Ref where(Ref condition, Ref a, Ref b) {
  return a.maker->apply(Function::where, {condition, a, b});
}

}  // namespace bellows::graph::detail
