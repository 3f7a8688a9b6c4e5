#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// What to look for in a program: an operator whose operands are made by others, down to whatever stands for any tensor.
class Pattern {
 public:
  /// Any tensor, through any view. The same name twice is the same tensor.
  static Pattern any(std::string name);
  /// Any number or other argument that is no tensor.
  static Pattern constant(std::string name);
  /// This number only, if it cannot change from call to call.
  static Pattern number(double value);
  /// An operator of one result, by its full name; arguments that are not named may be anything that is no tensor.
  static Pattern op(std::string name, std::vector<Pattern> arguments);

 private:
  friend class Matcher;
  enum class Kind { any, constant, number, op };
  Kind kind_ = Kind::any;
  std::string name_;
  double value_ = 0;
  std::vector<Pattern> arguments_;
};

/// A place where a pattern was found.
struct Match {
  std::vector<int> instructions;  ///< of the program; the last one is the pattern's own
  std::unordered_map<std::string, Instruction::Argument> arguments;  ///< by name

  const Instruction::Argument& operator[](const std::string& name) const { return arguments.at(name); }
  const Operand& operand(const std::string& name) const { return arguments.at(name).operands.at(0); }
};

/// Makes what comes in the place of a match.
class Editor {
 public:
  Editor(Program& program, const Match& match);

  const Program& program() const { return program_; }
  /// The operand that the match gave.
  const Operand& result() const { return replaced_.results[0].operands[0]; }
  /// Adds a call of an operator, in the state that the match's own ran in; what is left out of its arguments has the schema's default.
  /// Params:  result – what it will give: a new buffer
  /// Throws:  c10::ValueError – no operator of this name, or arguments that do not fit its schema
  Operand call(std::string_view op, std::vector<Instruction::Argument> arguments, const Geometry& result);
  static Instruction::Argument tensor(const Operand& operand);
  static Instruction::Argument constant(c10::IValue value);

  std::vector<Instruction> take() { return std::move(made_); }

 private:
  Program& program_;
  const Instruction replaced_;
  std::vector<Instruction> made_;
};

/// Looks for a pattern and puts something else in its place, everywhere. What is inside of a match must be read there only.
/// Params:  replace – gives what stands for the result: an operand of the match, or what Editor::call gave, in the same places as
///                    result(); nothing: leaves this one
/// Returns: how many it has replaced
int64_t rewrite(Program& program, const Pattern& pattern,
                const std::function<std::optional<Operand>(Editor&, const Match&)>& replace);

/// All matches, in the program's order.
std::vector<Match> find_all(const Program& program, const Pattern& pattern);

}  // namespace bellows::graph
