#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::graph::detail {

/// The instructions that make, read and overwrite each value of a program. Not updated when the program changes.
struct Uses {
  explicit Uses(const Program& program);

  std::vector<int> maker;                 ///< the instruction; -1: an input, a constant, or none
  std::vector<std::vector<int>> readers;  ///< instructions, in order, each once
  std::vector<int> overwriter;            ///< the instruction that updates the value; -1: none
  std::vector<int> outputs;               ///< number of outputs that have the value
  std::vector<bool> update;               ///< made by an update, so that it shares the memory of another value

  /// True if no instruction overwrites the value, and its memory is neither shared with another value nor an output.
  bool is_free(ValueId value) const { return overwriter[value] < 0 && outputs[value] == 0 && !update[value]; }
  /// True if the value is free and this is the only instruction that reads it.
  bool read_only_by(ValueId value, int instruction) const {
    return is_free(value) && readers[value].size() == 1 && readers[value][0] == instruction;
  }
};

/// Calls visit(operand) for each operand that an instruction reads.
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

/// Returns: the operator with this full name, or null if there is none
const OperatorFacts* operator_named(std::string_view name);
/// True if an instruction only computes its results, so that it can be removed, repeated or moved.
bool is_pure(const Instruction& instruction);
/// True if two geometries have the same places and dtype. The kind of tensor may differ.
bool same_places(const Geometry& a, const Geometry& b);
/// True if an instruction is a call of this operator.
bool calls(const Instruction& instruction, std::string_view op);
/// True if the elements are consecutive from the beginning of the buffer, in logical order.
bool is_row_major(const Geometry& geometry);
/// True if a tensor covers its whole buffer, each place once.
bool covers(const Geometry& geometry, size_t nbytes);

/// Makes readers of `old` read `other` instead, which has the same content at the same places.
/// Returns: false if this is not possible. The program is then unchanged.
bool replace_value(Program& program, const Uses& uses, ValueId old, ValueId other);
ValueId add_value(Program& program, const Geometry& geometry, size_t nbytes);

/// Removes instructions.
void erase_instructions(Program& program, const std::vector<bool>& erased);

}  // namespace bellows::graph::detail
