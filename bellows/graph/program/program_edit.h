#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::graph::detail {

/// Who makes, reads and overwrites the values of a program, as it was when this was made.
struct Uses {
  explicit Uses(const Program& program);

  std::vector<int> maker;                 ///< the instruction; -1: an input, a constant, or nobody
  std::vector<std::vector<int>> readers;  ///< instructions, in order, each once
  std::vector<int> overwriter;            ///< the instruction that updates the value; -1: none
  std::vector<int> outputs;               ///< how many outputs have it
  std::vector<bool> update;               ///< what an update left: it has the memory of another value

  /// Nobody writes over it, and it has memory of its own that nobody else is given.
  bool is_free(ValueId value) const { return overwriter[value] < 0 && outputs[value] == 0 && !update[value]; }
  /// Read by this instruction only.
  bool read_only_by(ValueId value, int instruction) const {
    return is_free(value) && readers[value].size() == 1 && readers[value][0] == instruction;
  }
};

/// Calls visit(operand) for all that an instruction reads.
template <class One, class Visit>
void for_each_operand(One& instruction, const Visit& visit) {
  for (auto& argument : instruction.arguments) {
    for (auto& operand : argument.operands) {
      if (operand.value != no_value) visit(operand);
    }
  }
}
template <class One, class Visit>
void for_each_result(One& instruction, const Visit& visit) {
  for (auto& result : instruction.results) {
    for (auto& operand : result.operands) {
      if (operand.value != no_value) visit(operand);
    }
  }
}

/// An operator of libtorch, by its full name; null where there is none.
const OperatorFacts* operator_named(std::string_view name);
/// Whether an instruction only computes: it may be left out, repeated, or run elsewhere.
bool is_pure(const Instruction& instruction);
/// Whether two geometries are the same places and the same numbers, whatever kind of tensor they make.
bool same_places(const Geometry& a, const Geometry& b);
/// Whether an instruction is a call of this operator.
bool calls(const Instruction& instruction, std::string_view op);
/// Whether places follow each other from the beginning of the buffer on, in logical order.
bool is_row_major(const Geometry& geometry);
/// Whether a tensor covers its buffer, each place once.
bool covers(const Geometry& geometry, size_t nbytes);

/// Lets readers of `old` read `other` instead, which holds the same in the same places. False, where that cannot be; then nothing changes.
bool replace_value(Program& program, const Uses& uses, ValueId old, ValueId other);
ValueId add_value(Program& program, const Geometry& geometry, size_t nbytes);

/// Takes instructions out.
void erase_instructions(Program& program, const std::vector<bool>& erased);

}  // namespace bellows::graph::detail
