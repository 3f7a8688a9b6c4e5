#pragma once

#include <span>

#include "bellows/graph/recording/buffer_table.h"
#include "bellows/tap/op_tap.h"

namespace bellows::graph::detail {

/// Makes nodes of operators that run.
class NodeRecorder {
 public:
  /// Before the operator runs: what in-place operators do to sizes comes after.
  NodeRecorder(const tap::OpCall& op, tap::Stack& stack, BufferTable& buffers);
  /// After it ran, of an operator whose tensors were those of another node; `arguments` as they were before.
  NodeRecorder(const Node& other, std::span<const c10::IValue> arguments);

  /// While it ran, the host, or a result's sizes, came from data.
  void note_look() { looked_ = true; }
  /// After it ran.
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
  BufferId first_new_ = 0;  ///< buffers from here on are the operator's own
  bool looked_ = false;
  bool uncommon_ = false;  ///< something that no rule covers
};

}  // namespace bellows::graph::detail
