#pragma once

#include <optional>
#include <vector>

#include "bellows/graph/passes/expression.h"

namespace bellows::graph::detail {

/// Writes the expressions of several instructions as one: what one makes and the next reads stays a term.
class GroupWriter {
 public:
  /// Takes an instruction in, after all that it reads values of. False: it does not fit; then nothing has changed.
  bool add(const Instruction& instruction);
  bool add(const Instruction& instruction, Expression expression);
  /// Whether what was written may be run at once: no value is read when it may be overwritten.
  bool is_sound() const;

  /// Stores stand for all values that were made, `made` beside them; index of loads: in `inputs`.
  const Expression& expression() const { return expression_; }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& made() const { return made_; }
  /// Of each made value: the input whose memory it has; no_value: memory of its own.
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
  std::vector<int> term_of_;  ///< of the instruction's terms, where they are now
};

}  // namespace bellows::graph::detail
