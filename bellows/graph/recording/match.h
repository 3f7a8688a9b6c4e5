#pragma once

#include <span>
#include <string>

#include "bellows/graph/recording/buffer_table.h"
#include "bellows/tap/op_tap.h"

namespace bellows::graph::detail {

/// An operator that has arrived: its arguments, the numbers of their buffers, and the state it was called in. New buffers are numbered in
/// the table; take them back by BufferTable::truncate() if no node matches.
struct Arrival {
  Arrival(const tap::OpCall& call, const OperatorFacts& facts, tap::Stack& stack, BufferTable& table);

  const tap::OpCall& op;
  std::span<c10::IValue> arguments;
  c10::SmallVector<BufferId, 8> buffers;  ///< of all tensors, in order
  Ambient ambient;
  bool foreign = false;  ///< a tensor whose value another region, or nobody, will compute
};

/// How far an operator agrees with a node.
enum class Agreement : uint8_t {
  none,
  tensors,  ///< all but the numbers, of which at least one was not seen to differ before
  all,      ///< may be followed as it is; of nodes that run at once, numbers and constants are not compared
};
Agreement compare(const Node& node, const Arrival& arrival);

/// Makes inputs of the numbers that differ. Returns how many are new.
int lift_numbers(Node& node, const Arrival& arrival);
/// Adds the numbers that are inputs, in order.
void add_lifted_numbers(const Node& node, const Arrival& arrival, std::vector<c10::IValue>& numbers);

/// Why an operator does not agree with a node, for explain().
std::string difference(const Node& node, const Arrival& arrival);

/// Whether an operator's results are those that a node has: kinds, buffers and geometries. New buffers are numbered; take them
/// back by BufferTable::truncate() if not.
bool results_fit(const Node& node, std::span<const c10::IValue> results, BufferTable& buffers);

/// Whether two values of the same argument can be told apart: not, if they are objects of classes that are unknown here.
bool comparable(const c10::IValue& value);
bool same_constant(const c10::IValue& a, const c10::IValue& b);

}  // namespace bellows::graph::detail
