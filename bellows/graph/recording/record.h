#pragma once

#include <functional>
#include <span>

#include "bellows/graph/recording/buffer_table.h"
#include "bellows/graph/recording/stand_ins.h"
#include "bellows/tap/op_tap.h"

namespace bellows::graph::detail {

/// Records operators that run.
class OperatorRecorder {
 public:
  /// Use this constructor before the operator runs, because in-place operators may change sizes.
  OperatorRecorder(const tap::OpCall& op, tap::Stack& stack, BufferTable& buffers);
  /// Use this constructor after the operator has run. The operator's tensors must be the same as those of `other`.
  /// Params: arguments – the arguments before the call
  OperatorRecorder(const RecordedOperator& other, std::span<const c10::IValue> arguments);

  /// Call this function if the operator passed data to the host, or if result sizes depended on data.
  void note_look() { looked_ = true; }
  /// Returns when the operator runs in later calls of the region. Before finish(), it depends on the arguments only.
  When when() const;
  /// Returns the recorded operator as far as it is known before the operator has run.
  const RecordedOperator& begun() const { return recorded_; }
  /// Returns the recorded operator. Call this function after the operator has run.
  RecordedOperator finish(std::span<const c10::IValue> results, BufferTable& buffers) &&;
  /// Does the same after the operator has run on stand-ins. The buffer table stays unchanged.
  RecordedOperator finish(StandIns& stand_ins, BufferTable& buffers) &&;

 private:
  Instruction::Argument argument(const c10::IValue& value, OperatorFacts::Kind kind, BufferTable& buffers);
  using Numbering = std::function<BufferId(const at::Tensor&)>;
  RecordedOperator finish(std::span<const c10::IValue> results, const Numbering& buffer_of);
  Instruction::Result result(const c10::IValue& value, const Numbering& buffer_of);
  Operand result(const at::Tensor& tensor, const Numbering& buffer_of);
  bool needs_flush() const;
  bool random() const;

  RecordedOperator recorded_;
  std::vector<Operand> tensors_;  ///< of all arguments, in order
  std::vector<const c10::TensorImpl*> identities_;
  BufferId first_new_ = 0;  ///< buffers from this number on were created by the operator
  BufferId next_new_ = 0;   ///< the number of the next buffer
  bool looked_ = false;
  bool uncommon_ = false;  ///< has a property that no rule covers
};

}  // namespace bellows::graph::detail
