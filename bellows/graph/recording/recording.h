#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Buffers are numbered in the order in which a call first uses them. Views, in-place writes, and undeclared aliases are
/// identified by their buffer.
///
/// The instruction of a recorded operator refers to buffers: Operand::value is the number of a buffer, and therefore does
/// not change when an operator writes the buffer. `updates` and `state` are empty. An argument whose `number` is not
/// negative is a number that has changed between calls. program_builder.h renumbers such instructions to those of a
/// program, in which each write creates a new value.
using BufferId = ValueId;
inline constexpr BufferId no_buffer = no_value;
inline constexpr BufferId opaque_buffer = opaque_value;

/// The time at which a followed operator runs.
enum class When : uint8_t {
  later,  ///< deferred: runs together with the other pending operators
  now,    ///< runs immediately, because it needs no pending value: factories, random operators
  flush,  ///< a barrier: runs immediately, after all pending operators; for host reads and unknown effects
};

/// One operator of a recording: an instruction, and the facts that only recordings need.
struct RecordedOperator {
  /// One tensor among the results.
  struct Result {
    int argument = -1;    ///< if an argument is returned: its index among the tensors of all arguments; else -1
    bool made = false;    ///< the operator created this buffer
    bool counted = true;  ///< the tensor has a version counter; true also for inference tensors that detach() made
    size_t nbytes = 0;    ///< size of the buffer
  };

  Instruction instruction{};
  Program::State state{};
  When when = When::later;
  bool view = false;              ///< not executed, because all results are aliases of existing buffers
  std::vector<Result> results{};  ///< for the tensors of all results, in order
  BufferId buffers_after = 0;     ///< number of buffers after the operator has run

  const OperatorFacts& op() const { return *instruction.op; }
  /// Returns the buffers that the operator writes, except new buffers.
  std::vector<BufferId> written() const;
};

/// Calls visit(operand, facts) for the tensors of all results, in order.
template <class Visit>
void for_each_recorded_result(const RecordedOperator& recorded, const Visit& visit) {
  const RecordedOperator::Result* facts = recorded.results.data();
  for (const Instruction::Result& result : recorded.instruction.results) {
    for (const Operand& operand : result.operands) visit(operand, *facts++);
  }
}

/// One recording of a region: the operators of a call, in order.
struct Recording {
  /// All operators, including views. The outputs are the inputs that the call writes.
  Program program{};
  std::vector<When> when{};  ///< for each instruction
  int64_t calls = 0;         ///< number of calls that ended with the last operator

  /// Returns one line per operator, and marks those that run immediately.
  std::string to_text() const;
};

}  // namespace bellows::graph
