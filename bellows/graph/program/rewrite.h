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

/// A pattern to search for in a program: an operator whose operands are placeholders or the results of other operators.
/// A placeholder matches any tensor.
class Pattern {
 public:
  /// Matches any tensor, also through views. If a name is used twice, both places must have the same tensor.
  static Pattern any(std::string name);
  /// Matches any number or other argument that is not a tensor.
  static Pattern constant(std::string name);
  /// Matches only this number, and only if the argument is the same in all calls.
  static Pattern number(double value);
  /// Matches an operator with one result by its full name. Arguments after the given `arguments` must not be tensors,
  /// but may have any value.
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
  std::vector<int> instructions;  ///< indices in the program; the last one matches the root of the pattern
  std::unordered_map<std::string, Instruction::Argument> arguments;  ///< by the names in the pattern

  const Instruction::Argument& operator[](const std::string& name) const { return arguments.at(name); }
  const Operand& operand(const std::string& name) const { return arguments.at(name).operands.at(0); }
};

/// Creates the replacement of a match.
class Editor {
 public:
  Editor(Program& program, const Match& match);

  const Program& program() const { return program_; }
  /// Returns the result of the matched operator, which will be replaced.
  const Operand& result() const { return replaced_.results[0].operands[0]; }
  /// Adds a call of an operator, in the same state as the matched operator. Omitted arguments have the schema's default
  /// values.
  /// Params: result – the geometry of the result, which is a new buffer
  /// Throws: c10::ValueError if there is no operator with this name, or if the arguments do not match its schema
  Operand call(std::string_view op, std::vector<Instruction::Argument> arguments, const Geometry& result);
  static Instruction::Argument tensor(const Operand& operand);
  static Instruction::Argument constant(c10::IValue value);

  std::vector<Instruction> take() { return std::move(made_); }

 private:
  Program& program_;
  const Instruction replaced_;
  std::vector<Instruction> made_;
};

/// Replaces all matches of a pattern. Only the matched instructions may read the intermediate values of a match.
/// Params:  replace – returns an operand that replaces the result: an operand of the match, or the result of
///                    Editor::call(). It must cover the same elements as result(). If `replace` returns nothing, the
///                    match is skipped
/// Returns: the number of replacements
int64_t rewrite(Program& program, const Pattern& pattern,
                const std::function<std::optional<Operand>(Editor&, const Match&)>& replace);

/// Returns all matches, in the order of the program.
std::vector<Match> find_all(const Program& program, const Pattern& pattern);

}  // namespace bellows::graph
