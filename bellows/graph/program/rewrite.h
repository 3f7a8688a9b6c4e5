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

/// A pattern to search for in a program: an operator whose operands are made by other operators, down to placeholders
/// for any tensor.
class Pattern {
 public:
  /// Matches any tensor, through any view. If a name is used twice, both must be the same tensor.
  static Pattern any(std::string name);
  /// Matches any number or other argument that is not a tensor.
  static Pattern constant(std::string name);
  /// Matches this number only, if it cannot change from call to call.
  static Pattern number(double value);
  /// Matches an operator with one result by its full name. Arguments beyond `arguments` can be anything except tensors.
  static Pattern op(std::string name, std::vector<Pattern> arguments);

 private:
  friend class Matcher;
  enum class Kind { any, constant, number, op };
  Kind kind_ = Kind::any;
  std::string name_;
  double value_ = 0;
  std::vector<Pattern> arguments_;
};

/// One match of a pattern.
struct Match {
  std::vector<int> instructions;  ///< of the program; the last one is the root of the pattern
  std::unordered_map<std::string, Instruction::Argument> arguments;  ///< by name

  const Instruction::Argument& operator[](const std::string& name) const { return arguments.at(name); }
  const Operand& operand(const std::string& name) const { return arguments.at(name).operands.at(0); }
};

/// Makes the replacement of a match.
class Editor {
 public:
  Editor(Program& program, const Match& match);

  const Program& program() const { return program_; }
  /// The result of the matched operator, which is to be replaced.
  const Operand& result() const { return replaced_.results[0].operands[0]; }
  /// Adds a call of an operator, in the same state as the matched operator. Omitted arguments have the schema's
  /// defaults.
  /// Params: result – the geometry of its result, a new buffer
  /// Throws: c10::ValueError if there is no operator of this name, or if the arguments do not match its schema
  Operand call(std::string_view op, std::vector<Instruction::Argument> arguments, const Geometry& result);
  static Instruction::Argument tensor(const Operand& operand);
  static Instruction::Argument constant(c10::IValue value);

  std::vector<Instruction> take() { return std::move(made_); }

 private:
  Program& program_;
  const Instruction replaced_;
  std::vector<Instruction> made_;
};

/// Replaces a pattern everywhere. Intermediate values of a match must have no other readers.
/// Params:  replace – returns the replacement of the result: an operand of the match, or a result of Editor::call, at
///          the same places as result(). If it returns nothing, this match is skipped.
/// Returns: the number of replacements
int64_t rewrite(Program& program, const Pattern& pattern,
                const std::function<std::optional<Operand>(Editor&, const Match&)>& replace);

/// Returns: all matches, in the program's order
std::vector<Match> find_all(const Program& program, const Pattern& pattern);

}  // namespace bellows::graph
