#pragma once

#include <vector>

#include "bellows/graph/recording/buffer_table.h"
#include "bellows/tap/op_tap.h"

namespace bellows::graph::detail {

/// Arguments for a run of an operator without effects, which shows the sizes, strides and aliases of its results.
/// Tensors that have no data yet, and tensors that the operator writes, are replaced by zeros of the same geometry. All
/// other tensors are those of the caller.
class StandIns {
 public:
  /// Params: arguments – on top of the stack; not changed
  StandIns(const tap::OpCall& op, const OperatorFacts& facts, tap::Stack& stack, BufferTable& buffers);

  /// The operator's arguments. Run the operator on it; then it holds the results.
  tap::Stack& stack() { return stack_; }
  /// Returns: the number of a result's buffer. Buffers that the operator made are numbered from BufferTable::size() on,
  ///          in the order in which this function first gets them.
  BufferId of(const at::Tensor& result);
  /// Returns: the tensors among the arguments, counted over all arguments
  const std::vector<const c10::TensorImpl*>& identities() const { return identities_; }

 private:
  c10::IValue replaced(const c10::IValue& value, bool written);
  at::Tensor replaced(const at::Tensor& tensor, bool written);

  struct Known {
    c10::Storage storage;
    BufferId id;
  };

  BufferTable& buffers_;
  tap::Stack stack_;
  std::vector<const c10::TensorImpl*> identities_;
  std::vector<Known> known_;  ///< the storages that the operator gets, and those that it makes
  BufferId next_;
};

}  // namespace bellows::graph::detail
