#pragma once

#include <span>

#include "bellows/graph/recording/buffer_table.h"
#include "bellows/tap/op_tap.h"

namespace bellows::graph::detail {

/// Makes nodes from operators that run.
class NodeRecorder {
 public:
  /// Call it before the operator runs, because in-place operators may change sizes.
  NodeRecorder(const tap::OpCall& op, tap::Stack& stack, BufferTable& buffers);
  /// Call it after the operator has run, if its tensors are those of another node.
  /// Params: arguments – as they were before the call
  NodeRecorder(const Node& other, std::span<const c10::IValue> arguments);

  /// Call it if the operator passed data to the host, or if result sizes depended on data.
  void note_look() { looked_ = true; }
  /// Call it after the operator has run.
  Node finish(std::span<const c10::IValue> results, BufferTable& buffers) &&;

 private:
  Argument argument(const c10::IValue& value, OperatorFacts::Kind kind, BufferTable& buffers);
  Output output(const at::Tensor& tensor, BufferTable& buffers);
  Result result(const c10::IValue& value, BufferTable& buffers);
  bool needs_flush() const;
  bool random() const;

  Node node_;
  std::vector<Value> tensors_;  ///< of all arguments, in order
  std::vector<const c10::TensorImpl*> identities_;
  BufferId first_new_ = 0;  ///< buffers from this number on were made by the operator
  bool looked_ = false;
  bool uncommon_ = false;  ///< has a property that no rule covers
};

}  // namespace bellows::graph::detail
