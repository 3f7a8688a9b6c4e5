#pragma once

#include <span>
#include <string>

#include "bellows/graph/recording/buffer_table.h"
#include "bellows/tap/op_tap.h"

namespace bellows::graph::detail {

/// A called operator with its arguments, the numbers of the arguments' buffers, and the state in which the operator was
/// called. The constructor adds new buffers to the table. If no step matches, remove them with BufferTable::truncate().
struct Arrival {
  Arrival(const tap::OpCall& call, const OperatorFacts& facts, tap::Stack& stack, BufferTable& table);

  const tap::OpCall& op;
  std::span<c10::IValue> arguments;
  c10::SmallVector<BufferId, 8> buffers;           ///< of all tensors, in order
  c10::SmallVector<const at::Tensor*, 8> tensors;  ///< all tensors, in order; valid as long as the arguments
  DispatchState dispatch_state;
  bool foreign = false;  ///< a tensor is pending in another region or call
};

/// The degree to which an operator matches a recorded one.
enum class Agreement : uint8_t {
  none,
  tensors,  ///< matches except for numbers; at least one number differs for the first time
  all,      ///< matches and can be followed. If the operator runs immediately, numbers and constants are not compared
};
Agreement compare(const RecordedOperator& recorded, const Arrival& arrival);

/// Turns the numbers that differ between the recording and the call into inputs.
/// Returns: the number of new inputs
int lift_numbers(RecordedOperator& recorded, const Arrival& arrival);
/// Appends the values of the numbers that are inputs, in order.
void add_lifted_numbers(const Instruction& instruction, const Arrival& arrival, std::vector<c10::IValue>& numbers);

/// Returns the reason why an operator does not match a recorded one, for explain().
std::string difference(const RecordedOperator& recorded, const Arrival& arrival);

/// Returns whether an operator's results match the recorded ones in kinds, buffers and geometries. New buffers are added
/// to the table. If the results do not match, remove the new buffers with BufferTable::truncate().
bool results_fit(const Instruction& instruction, std::span<const c10::IValue> results, BufferTable& buffers);

/// Returns whether values of this kind can be compared. Objects of unknown classes cannot be compared.
bool comparable(const c10::IValue& value);
bool same_constant(const c10::IValue& a, const c10::IValue& b);
/// Returns whether two numbers are of the same kind, or lists of such numbers have the same length.
bool same_number_kind(const c10::IValue& a, const c10::IValue& b);

}  // namespace bellows::graph::detail
