#include <cmath>

#include "bellows/graph/passes/passes.h"
#include "bellows/graph/program/program_edit.h"
#include "bellows/graph/program/rewrite.h"

namespace bellows::graph::detail {
namespace {

using Replacement = std::optional<Operand> (*)(Editor&, const Match&);

/// A pattern and its replacement. All rules are exact. Not included: x + 0, which turns -0 into 0, and division by a
/// constant.
struct Rule {
  Pattern pattern;
  Replacement replace;
};

std::optional<Operand> itself(Editor& editor, const Match& match) {
  const Operand& x = match.operand("x");
  return same_places(x.geometry, editor.result().geometry) ? std::optional(x) : std::nullopt;
}

std::optional<Operand> once(Editor& editor, const Match& match) {
  const auto& inner = editor.program().instructions[match.instructions.front()];
  return editor.call(inner.op->name, inner.arguments, editor.result().geometry);
}

std::optional<Operand> squared(Editor& editor, const Match& match) {
  const auto type = editor.result().geometry.dtype.toScalarType();
  const Operand& x = match.operand("x");
  if ((type != c10::kFloat && type != c10::kDouble) || x.geometry.dtype.toScalarType() != type) return std::nullopt;
  return editor.call("aten::mul.Tensor", {Editor::tensor(x), Editor::tensor(x)}, editor.result().geometry);
}

/// True if the cast is lossless, so that its result can be cast back.
bool widens(const Geometry& from, const Geometry& to) {
  const auto a = from.dtype.toScalarType(), b = to.dtype.toScalarType();
  return is_floating(from) && is_floating(to) && c10::promoteTypes(a, b) == b;
}

std::optional<Operand> cast_once(Editor& editor, const Match& match) {
  const auto& all = editor.program().instructions;
  const Operand& x = match.operand("x");
  const Geometry& between = all[match.instructions.front()].results[0].operands[0].geometry;
  if (!widens(x.geometry, between) || x.geometry.strides != between.strides) return std::nullopt;
  if (same_places(x.geometry, editor.result().geometry)) return x;
  auto arguments = all[match.instructions.back()].arguments;
  arguments[0] = Editor::tensor(x);
  return editor.call("aten::_to_copy", arguments, editor.result().geometry);
}

std::optional<double> power_of_two(const Instruction::Argument& argument) {
  if (argument.number >= 0 || !(argument.constant.isDouble() || argument.constant.isInt())) return std::nullopt;
  const double value =
      argument.constant.isInt() ? static_cast<double>(argument.constant.toInt()) : argument.constant.toDouble();
  int exponent = 0;
  return value >= 1 && std::frexp(value, &exponent) == 0.5 ? std::optional(value) : std::nullopt;
}

/// Combines two factors of 2, 4, 8, …. They overflow in the same cases as their product. Smaller factors would round
/// twice in the subnormal range.
std::optional<Operand> scaled_once(Editor& editor, const Match& match) {
  const auto a = power_of_two(match["a"]), b = power_of_two(match["b"]);
  const Operand& x = match.operand("x");
  if (!a || !b || *a * *b > 0x1p60 || !is_floating(x.geometry)) return std::nullopt;
  return editor.call("aten::mul.Scalar", {Editor::tensor(x), Editor::constant(*a * *b)}, editor.result().geometry);
}

const std::vector<Rule>& rules() {
  const auto x = Pattern::any("x"), any = Pattern::any("any");
  static const std::vector<Rule> all{
      {Pattern::op("aten::mul.Scalar", {x, Pattern::number(1)}), itself},
      {Pattern::op("aten::div.Scalar", {x, Pattern::number(1)}), itself},
      {Pattern::op("aten::sub.Scalar", {x, Pattern::number(0)}), itself},
      {Pattern::op("aten::pow.Tensor_Scalar", {x, Pattern::number(1)}), itself},
      {Pattern::op("aten::pow.Tensor_Scalar", {x, Pattern::number(2)}), squared},
      {Pattern::op("aten::neg", {Pattern::op("aten::neg", {x})}), itself},
      {Pattern::op("aten::relu", {Pattern::op("aten::relu", {x})}), once},
      {Pattern::op("aten::abs", {Pattern::op("aten::abs", {x})}), once},
      {Pattern::op("aten::_to_copy", {Pattern::op("aten::_to_copy", {x})}), cast_once},
      {Pattern::op("aten::_to_copy", {x}), itself},
      {Pattern::op("aten::clone", {x}), itself},
      {Pattern::op("aten::copy", {any, x}), itself},
      {Pattern::op("aten::mul.Scalar",
                   {Pattern::op("aten::mul.Scalar", {x, Pattern::constant("a")}), Pattern::constant("b")}),
       scaled_once},
  };
  return all;
}

}  // namespace

int64_t simplify_algebra(Program& program, const PassOptions&) {
  int64_t fired = 0;
  for (const Rule& rule : rules()) fired += rewrite(program, rule.pattern, rule.replace);
  return fired;
}

}  // namespace bellows::graph::detail
