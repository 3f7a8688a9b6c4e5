#pragma once

#include <vector>

#include "bellows/graph/recording/buffer_table.h"
#include "bellows/tap/op_tap.h"

namespace bellows::graph::detail {

/// Arguments for a trial run of an operator. The trial run changes no data of the caller. It shows the sizes, strides
/// and aliases of the operator's results. Tensors that have no data yet, and tensors that the operator writes, are
/// replaced by zeros of the same geometry. All other tensors are those of the caller.
class StandIns {
 public:
  /// Params: arguments – on top of the stack; not changed
  StandIns(const tap::OpCall& op, const OperatorFacts& facts, tap::Stack& stack, BufferTable& buffers);

  /// Returns a stack with the operator's arguments. After the operator has run on this stack, the stack contains the
  /// results.
  tap::Stack& stack() { return stack_; }
  /// Returns the number of a result's buffer. Buffers that the operator created are numbered from BufferTable::size()
  /// on, in the order in which this function first receives them.
  BufferId of(const at::Tensor& result);
  /// Returns the tensors of all arguments, in order.
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
  std::vector<at::Tensor> owners_;  ///< kernels of out= operators use their arguments after the stack has dropped them
  std::vector<Known> known_;        ///< the storages that the operator receives, and those that it creates
  BufferId next_;
};

}  // namespace bellows::graph::detail
