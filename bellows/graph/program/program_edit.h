#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::graph::detail {

/// The instructions that compute, read and overwrite each value of a program. The object is not updated if the program
/// changes.
struct Uses {
  explicit Uses(const Program& program);

  std::vector<int> maker;                 ///< instruction that computes the value; -1 for inputs and constants
  std::vector<std::vector<int>> readers;  ///< instructions in order, each once
  std::vector<int> overwriter;            ///< instruction that updates the value; -1 if there is none
  std::vector<int> outputs;               ///< number of outputs that have the value
  std::vector<bool> update;  ///< whether an update computes the value, which then shares memory with an earlier value

  /// Returns whether the value is never overwritten, is not an output, and does not share memory with another value.
  bool is_free(ValueId value) const { return overwriter[value] < 0 && outputs[value] == 0 && !update[value]; }
  /// Returns whether the value is free and only this instruction reads it.
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

/// Returns the operator with this full name, or null if there is none.
const OperatorFacts* operator_named(std::string_view name);
/// Returns whether an instruction has no effect except its results. Such an instruction can be removed, repeated or
/// moved.
bool is_pure(const Instruction& instruction);
/// Returns whether an instruction is a pure operator with one tensor as result, and all its numbers are constants.
bool is_simple(const Instruction& instruction);
/// Returns the tensor of an argument that is not a list.
inline const Operand& operand_of(const Instruction& instruction, size_t argument) {
  return instruction.arguments[argument].operands[0];
}
/// Returns whether an argument is the constant 1, as an integer or a floating-point number.
bool is_one(const Instruction::Argument& argument);
/// Returns whether two geometries cover the same elements of a buffer and have the same dtype. The kind of tensor may
/// differ.
bool same_places(const Geometry& a, const Geometry& b);
/// Returns whether an instruction is a call of this operator.
bool calls(const Instruction& instruction, std::string_view op);
/// Returns whether the elements are consecutive from the beginning of the buffer, in logical order.
bool is_row_major(const Geometry& geometry);
/// Returns whether the elements are floating-point numbers.
inline bool is_floating(const Geometry& geometry) {
  return c10::isFloatingType(geometry.dtype.toScalarType());
}
/// Returns the geometry of a row-major tensor of the same sizes in its own buffer.
Geometry row_major(Geometry geometry);
/// Returns the geometry with the last two dims swapped.
Geometry transposed(Geometry geometry);
/// Returns whether a tensor covers its whole buffer and each element only once.
bool covers(const Geometry& geometry, size_t nbytes);

/// Replaces `old` with `other` in all instructions that read it. Both values must have the same content at the same
/// addresses of their buffers.
/// Returns: false if this is not possible. The program is then unchanged
bool replace_value(Program& program, const Uses& uses, ValueId old, ValueId other);
ValueId add_value(Program& program, const Geometry& geometry, size_t nbytes);

/// Returns an instruction that runs a kernel in the same state as another instruction.
/// Params: operands, results – in the order in which the kernel receives their memory
Instruction kernel_instruction(const Instruction& like, std::shared_ptr<const Kernel> kernel, std::string kind,
                               const std::vector<Operand>& operands, const std::vector<Operand>& results);

/// Removes instructions.
void erase_instructions(Program& program, const std::vector<bool>& erased);

}  // namespace bellows::graph::detail
