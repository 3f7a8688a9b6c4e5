#pragma once

#include <optional>
#include <vector>

#include "bellows/graph/passes/expression.h"

namespace bellows::graph::detail {

/// Combines the expressions of several instructions into one. If one instruction reads a value that another one
/// computes, it uses the term of this value instead of a load.
class GroupWriter {
 public:
  /// Adds an instruction. The instructions whose values it reads must have been added before.
  /// Returns: false if the instruction does not fit. The group is then unchanged
  bool add(const Instruction& instruction);
  bool add(const Instruction& instruction, Expression expression);
  /// Returns whether code for the combined expression is correct. It is not if a value might be read after it was
  /// overwritten.
  bool is_sound() const;

  /// Returns the combined expression. Its stores are in the order of `made`. A concatenation has one store for each of
  /// its parts, and all other values have one store. The indices of loads refer to inputs().
  const Expression& expression() const { return expression_; }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& made() const { return made_; }
  /// Returns for each computed value the input whose memory it shares, or no_value if it has separate memory.
  const std::vector<ValueId>& roots() const { return roots_; }

 private:
  using Loops = std::vector<size_t>;

  std::optional<uint64_t> loops_for(const Expression& one, const std::vector<const Operand*>& operands);
  std::optional<Loops> align(Expression& one, uint64_t loops);
  bool take_terms(const Expression& one, const Loops& loops, const Instruction& instruction,
                  const std::vector<const Operand*>& operands);
  bool take_stores(const Expression& one, const Loops& loops, const Instruction& instruction,
                   const std::vector<const Operand*>& operands);
  std::optional<Term> load(Term term, ValueId value, int& already);
  bool put(ValueId before, ValueId value, Store store);
  int find(ValueId value) const;
  int input(ValueId value);
  int add_term(Term term);

  Expression expression_;
  std::vector<ValueId> inputs_, made_, roots_;
  std::vector<int> term_of_;  ///< for each term of the current instruction: its index in the combined expression
};

}  // namespace bellows::graph::detail
