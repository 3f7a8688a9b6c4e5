#include "bellows/graph/recording/record.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "bellows/graph/recording/match.h"

namespace bellows::graph::detail {
namespace {

/// Objects, storages and similar values are not kept alive. Their operators run immediately, with the current values.
c10::IValue kept(const c10::IValue& value) {
  return comparable(value) ? value : c10::IValue(value.tagKind());
}

}  // namespace

OperatorRecorder::OperatorRecorder(const tap::OpCall& op, tap::Stack& stack, BufferTable& buffers) {
  const OperatorFacts& facts = operator_facts(op.handle());
  recorded_.state.dispatch_state = DispatchState::capture();
  if (facts.reads_float32_precision) recorded_.state.float32_precision = float32_precision();
  Instruction& made = recorded_.instruction;
  made.op = &facts;
  made.default_dtype = recorded_.state.dispatch_state.default_dtype;
  const auto values = op.arguments(stack);
  made.arguments.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) made.arguments.push_back(argument(values[i], facts.arguments[i], buffers));
}

OperatorRecorder::OperatorRecorder(const RecordedOperator& other, std::span<const c10::IValue> arguments)
    : recorded_(other), looked_(other.when == When::flush) {
  recorded_.instruction.results.clear();
  recorded_.results.clear();
  for (size_t i = 0; i < arguments.size(); ++i) {
    Instruction::Argument& mine = recorded_.instruction.arguments[i];
    mine.number = -1;
    if (!mine.is_tensors()) {
      mine.constant = kept(arguments[i]);
      continue;
    }
    tensors_.insert(tensors_.end(), mine.operands.begin(), mine.operands.end());
    for_each_tensor(arguments[i],
                    [&](const at::Tensor& tensor) { identities_.push_back(tensor.unsafeGetTensorImpl()); });
  }
}

Instruction::Argument OperatorRecorder::argument(const c10::IValue& value, OperatorFacts::Kind kind,
                                                 BufferTable& buffers) {
  using Kind = OperatorFacts::Kind;
  Instruction::Argument made{.kind = value.isNone() ? Kind::constant : kind};
  if (!made.is_tensors()) {
    made.constant = kept(value);
    uncommon_ = uncommon_ || !comparable(value);
    return made;
  }
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    Operand one{.value = buffers.of(tensor)};
    if (one.value >= 0) one.geometry = Geometry::of(tensor);
    uncommon_ = uncommon_ || one.value == opaque_buffer;
    tensors_.push_back(one);
    identities_.push_back(tensor.unsafeGetTensorImpl());
    made.operands.push_back(std::move(one));
  });
  return made;
}

/// Adds the facts about the result to the recorded operator.
Operand OperatorRecorder::result(const at::Tensor& tensor, const Numbering& buffer_of) {
  const BufferId buffer = buffer_of(tensor);
  RecordedOperator::Result& facts = recorded_.results.emplace_back();
  if (buffer < 0) {
    uncommon_ = uncommon_ || buffer == opaque_buffer;
    return {.value = buffer};
  }
  facts.made = buffer >= next_new_;
  next_new_ = std::max(next_new_, buffer + 1);
  facts.counted = tensor.unsafeGetTensorImpl()->version_counter().enabled();
  facts.nbytes = tensor.storage().nbytes();
  const auto same = std::find(identities_.begin(), identities_.end(), tensor.unsafeGetTensorImpl());
  if (same != identities_.end() && !facts.made) facts.argument = static_cast<int>(same - identities_.begin());
  const bool own = buffer >= first_new_;  // several results may share a buffer that the operator made
  const auto of_it = [&](const Operand& operand) { return operand.value == buffer; };
  uncommon_ = uncommon_ || !(own || std::any_of(tensors_.begin(), tensors_.end(), of_it));
  return {.value = buffer, .geometry = Geometry::of(tensor)};
}

Instruction::Result OperatorRecorder::result(const c10::IValue& value, const Numbering& buffer_of) {
  Instruction::Result made{.list = value.isTensorList()};
  if (made.list || value.isTensor()) {
    for_each_tensor(value, [&](const at::Tensor& tensor) { made.operands.push_back(result(tensor, buffer_of)); });
  }
  return made;
}

bool OperatorRecorder::random() const {
  const OperatorFacts& op = recorded_.op();
  const auto constant = [&](int argument) -> const c10::IValue& {
    return recorded_.instruction.arguments[argument].constant;
  };
  if (!op.random) return false;
  if (op.dropout_argument >= 0 && constant(op.dropout_argument).isDouble() &&
      constant(op.dropout_argument).toDouble() == 0)
    return false;
  return op.train_argument < 0 || !constant(op.train_argument).isBool() || constant(op.train_argument).toBool();
}

/// True if the host needs values, if sizes depend on data, or if no rule covers the operator.
bool OperatorRecorder::needs_flush() const {
  const OperatorFacts& op = recorded_.op();
  const bool masked = std::any_of(tensors_.begin(), tensors_.end(), [](const Operand& operand) {
    return operand.geometry.dtype == caffe2::TypeMeta::Make<bool>() ||
           operand.geometry.dtype == caffe2::TypeMeta::Make<uint8_t>();
  });
  if (uncommon_ || looked_ || !op.known || (op.host_value && (masked || !op.masks_only)) ||
      (op.changes_metadata && !op.reads_no_data))
    return true;
  const auto first =
      std::find_if(tensors_.begin(), tensors_.end(), [](const Operand& operand) { return operand.value >= 0; });
  const c10::Device device = first == tensors_.end() ? c10::Device(c10::kCPU) : first->geometry.device;
  for (const Operand& operand : tensors_) {
    if (operand.value >= 0 && !operand.geometry.sizes.empty() && operand.geometry.device != device) return true;
  }
  bool flushes = false;
  for_each_recorded_result(recorded_, [&](const Operand& operand, const RecordedOperator::Result& facts) {
    const bool resized =
        facts.argument >= 0 && !(tensors_[facts.argument] == operand) && !op.reads_no_data;          // in place
    const bool copied = facts.made && first != tensors_.end() && operand.geometry.device != device;  // to a device
    flushes = flushes || resized || copied;
  });
  return flushes;
}

When OperatorRecorder::when() const {
  if (needs_flush()) return When::flush;
  return recorded_.op().factory || recorded_.op().reads_no_data || random() ? When::now : When::later;
}

RecordedOperator OperatorRecorder::finish(std::span<const c10::IValue> results, BufferTable& buffers) && {
  first_new_ = static_cast<BufferId>(buffers.size());
  return finish(results, [&](const at::Tensor& tensor) { return buffers.of(tensor); });
}

RecordedOperator OperatorRecorder::finish(StandIns& stand_ins, BufferTable& buffers) && {
  first_new_ = static_cast<BufferId>(buffers.size());
  identities_ = stand_ins.identities();
  return finish(stand_ins.stack(), [&](const at::Tensor& tensor) { return stand_ins.of(tensor); });
}

RecordedOperator OperatorRecorder::finish(std::span<const c10::IValue> results, const Numbering& buffer_of) {
  next_new_ = first_new_;
  for (const c10::IValue& value : results) recorded_.instruction.results.push_back(result(value, buffer_of));
  const bool made = std::any_of(recorded_.results.begin(), recorded_.results.end(),
                                [](const RecordedOperator::Result& one) { return one.made; });
  recorded_.when = when();
  recorded_.view = recorded_.when == When::later && !made && recorded_.op().writes.empty() && !results.empty();
  recorded_.buffers_after = next_new_;
  return std::move(recorded_);
}

}  // namespace bellows::graph::detail
