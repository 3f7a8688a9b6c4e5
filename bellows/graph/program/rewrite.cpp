#include "bellows/graph/program/rewrite.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "bellows/graph/program/program_edit.h"
#include "bellows/graph/recording/match.h"

namespace bellows::graph {

Pattern Pattern::any(std::string name) {
  Pattern made;
  made.name_ = std::move(name);
  return made;
}

Pattern Pattern::constant(std::string name) {
  Pattern made;
  made.kind_ = Kind::constant;
  made.name_ = std::move(name);
  return made;
}

Pattern Pattern::number(double value) {
  Pattern made;
  made.kind_ = Kind::number;
  made.value_ = value;
  return made;
}

Pattern Pattern::op(std::string name, std::vector<Pattern> arguments) {
  Pattern made;
  made.kind_ = Kind::op;
  made.name_ = std::move(name);
  made.arguments_ = std::move(arguments);
  return made;
}

class Matcher {
 public:
  Matcher(const Program& program, const detail::Uses& uses) : program_(program), uses_(uses) {}

  std::optional<Match> match(const Pattern& pattern, int instruction) {
    match_ = {};
    root_ = instruction;
    if (!fits(pattern, instruction) || !still_there()) return std::nullopt;
    return std::move(match_);
  }

 private:
  bool fits(const Pattern& pattern, int at) {
    const Instruction& one = program_.instructions[at];
    if (!one.op || one.kernel || one.op->name != pattern.name_ || !detail::is_pure(one) || one.results.size() != 1 ||
        one.results[0].list || pattern.arguments_.size() > one.arguments.size())
      return false;
    for (size_t i = 0; i < one.arguments.size(); ++i) {
      const bool named = i < pattern.arguments_.size();
      if (named ? !fits(pattern.arguments_[i], one.arguments[i]) : one.arguments[i].is_tensors()) return false;
    }
    match_.instructions.push_back(at);
    return true;
  }

  bool fits(const Pattern& pattern, const Instruction::Argument& argument) {
    switch (pattern.kind_) {
      case Pattern::Kind::constant:
        return !argument.is_tensors() && bind(pattern.name_, argument);
      case Pattern::Kind::number:
        return !argument.is_tensors() && argument.number < 0 && is_number(argument.constant, pattern.value_);
      case Pattern::Kind::any:
        return is_tensor(argument) && bind(pattern.name_, argument);
      case Pattern::Kind::op:
        return is_tensor(argument) && is_made(pattern, argument.operands[0]);
    }
    return false;
  }

  static bool is_tensor(const Instruction::Argument& argument) {
    return argument.kind == OperatorFacts::Kind::tensor && argument.operands[0].value != no_value;
  }
  static bool is_number(const c10::IValue& value, double number) {
    if (value.isDouble()) return value.toDouble() == number;
    return value.isInt() && static_cast<double>(value.toInt()) == number;
  }

  /// True if the operand has the geometry with which it was made, and only the operator above reads it.
  bool is_made(const Pattern& pattern, const Operand& operand) {
    const int maker = uses_.maker[operand.value];
    if (maker < 0 || !uses_.is_free(operand.value) || uses_.readers[operand.value].size() != 1) return false;
    const auto& results = program_.instructions[maker].results;
    return results.size() == 1 && results[0].operands.size() == 1 &&
           detail::same_places(results[0].operands[0].geometry, operand.geometry) && fits(pattern, maker);
  }

  bool bind(const std::string& name, const Instruction::Argument& argument) {
    const auto [known, fresh] = match_.arguments.emplace(name, argument);
    if (fresh) return true;
    if (argument.is_tensors()) return known->second.operands == argument.operands;
    return known->second.number == argument.number && detail::same_constant(known->second.constant, argument.constant);
  }

  /// True if the inputs of the operators inside can still be read at the position of the last one.
  bool still_there() const {
    for (const auto& [name, argument] : match_.arguments) {
      for (const Operand& operand : argument.operands) {
        const int end = uses_.overwriter[operand.value];
        if (end >= 0 && end <= root_) return false;
      }
    }
    return true;
  }

  const Program& program_;
  const detail::Uses& uses_;
  Match match_;
  int root_ = -1;
};

Editor::Editor(Program& program, const Match& match)
    : program_(program), replaced_(program.instructions[match.instructions.back()]) {}

Instruction::Argument Editor::tensor(const Operand& operand) {
  return {.kind = OperatorFacts::Kind::tensor, .operands = {operand}};
}

Instruction::Argument Editor::constant(c10::IValue value) {
  return {.kind = OperatorFacts::Kind::constant, .constant = std::move(value)};
}

Operand Editor::call(std::string_view name, std::vector<Instruction::Argument> arguments, const Geometry& result) {
  const OperatorFacts* const op = detail::operator_named(name);
  TORCH_CHECK_VALUE(op,
                    "Editor::call: expected the name of a registered operator, such as \"aten::add.Tensor\", got \"",
                    name, "\".");
  const auto& schema = op->handle->schema();
  TORCH_CHECK_VALUE(arguments.size() <= op->arguments.size() && op->results == 1, "Editor::call: got ",
                    arguments.size(), " arguments, expected those of an operator of one result: ", schema);
  Instruction made{
      .op = op, .arguments = std::move(arguments), .state = replaced_.state, .default_dtype = replaced_.default_dtype};
  for (size_t i = made.arguments.size(); i < op->arguments.size(); ++i) {
    const auto& missing = schema.arguments()[i];
    TORCH_CHECK_VALUE(missing.default_value(), "Editor::call: got no argument \"", missing.name(), "\" of ", schema);
    made.arguments.push_back({.constant = *missing.default_value()});
  }
  for (size_t i = 0; i < op->arguments.size(); ++i) {
    const bool left_out = op->arguments[i] == OperatorFacts::Kind::tensor && !made.arguments[i].is_tensors();
    if (!left_out) made.arguments[i].kind = op->arguments[i];
  }
  Geometry plain = result;
  plain.offset = 0;
  const Operand operand{.value = detail::add_value(program_, plain, plain.reach()), .geometry = plain};
  made.results = {{.operands = {operand}}};
  made_.push_back(std::move(made));
  return operand;
}

std::vector<Match> find_all(const Program& program, const Pattern& pattern) {
  const detail::Uses uses(program);
  std::vector<Match> found;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (auto match = Matcher(program, uses).match(pattern, static_cast<int>(i))) found.push_back(std::move(*match));
  }
  return found;
}

namespace {

/// Replaces the match by instructions. Returns false if the program cannot use their result.
bool put_in_place(Program& program, const Match& match, Editor& editor, const Operand& operand) {
  const Operand old = editor.result();
  if (!detail::same_places(old.geometry, operand.geometry)) return false;
  const int at = match.instructions.back();
  auto made = editor.take();
  auto& all = program.instructions;
  const Instruction removed = all[at];
  all.erase(all.begin() + at);
  all.insert(all.begin() + at, made.begin(), made.end());
  if (detail::replace_value(program, detail::Uses(program), old.value, operand.value)) return true;
  all.erase(all.begin() + at, all.begin() + at + static_cast<std::ptrdiff_t>(made.size()));
  all.insert(all.begin() + at, removed);
  return false;
}

}  // namespace

int64_t rewrite(Program& program, const Pattern& pattern,
                const std::function<std::optional<Operand>(Editor&, const Match&)>& replace) {
  int64_t fired = 0;
  detail::Uses uses(program);
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const auto match = Matcher(program, uses).match(pattern, static_cast<int>(i));
    if (!match) continue;
    const size_t values = program.values.size(), before = program.instructions.size();
    Editor editor(program, *match);
    const auto operand = replace(editor, *match);
    if (!operand || !put_in_place(program, *match, editor, *operand)) {
      program.values.resize(values);
      continue;
    }
    ++fired;
    std::vector<bool> inside(program.instructions.size(), false);
    for (const int at : match->instructions) inside[at] = at < static_cast<int>(i);
    const auto within = static_cast<size_t>(std::count(inside.begin(), inside.end(), true));
    const size_t grown = program.instructions.size();
    detail::erase_instructions(program, inside);
    i = i + grown - before - within;  // wraps to the instruction before the first
    uses = detail::Uses(program);
  }
  return fired;
}

}  // namespace bellows::graph
