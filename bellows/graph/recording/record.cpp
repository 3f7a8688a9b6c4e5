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

NodeRecorder::NodeRecorder(const tap::OpCall& op, tap::Stack& stack, BufferTable& buffers) {
  node_.op = &operator_facts(op.handle());
  node_.dispatch_state = DispatchState::capture();
  if (node_.op->reads_float32_precision) node_.float32_precision = float32_precision();
  const auto values = op.arguments(stack);
  node_.arguments.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i)
    node_.arguments.push_back(argument(values[i], node_.op->arguments[i], buffers));
}

NodeRecorder::NodeRecorder(const Node& other, std::span<const c10::IValue> arguments)
    : node_(other), looked_(other.when == When::flush) {
  node_.results.clear();
  for (size_t i = 0; i < arguments.size(); ++i) {
    Argument& mine = node_.arguments[i];
    mine.lifted = false;
    if (!mine.is_tensors()) {
      mine.constant = kept(arguments[i]);
      continue;
    }
    tensors_.insert(tensors_.end(), mine.tensors.begin(), mine.tensors.end());
    for_each_tensor(arguments[i],
                    [&](const at::Tensor& tensor) { identities_.push_back(tensor.unsafeGetTensorImpl()); });
  }
}

Argument NodeRecorder::argument(const c10::IValue& value, OperatorFacts::Kind kind, BufferTable& buffers) {
  using Kind = OperatorFacts::Kind;
  Argument made{.kind = value.isNone() ? Kind::constant : kind};
  if (!made.is_tensors()) {
    made.constant = kept(value);
    uncommon_ = uncommon_ || !comparable(value);
    return made;
  }
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    Value one{.buffer = buffers.of(tensor)};
    if (one.buffer >= 0) one.geometry = Geometry::of(tensor);
    uncommon_ = uncommon_ || one.buffer == opaque_buffer;
    tensors_.push_back(one);
    identities_.push_back(tensor.unsafeGetTensorImpl());
    made.tensors.push_back(std::move(one));
  });
  return made;
}

Output NodeRecorder::output(const at::Tensor& tensor, const Numbering& buffer_of) {
  Output made{.value = {.buffer = buffer_of(tensor)}};
  const BufferId buffer = made.value.buffer;
  if (buffer < 0) {
    uncommon_ = uncommon_ || buffer == opaque_buffer;
    return made;
  }
  made.value.geometry = Geometry::of(tensor);
  made.made = buffer >= next_new_;
  next_new_ = std::max(next_new_, buffer + 1);
  made.counted = tensor.unsafeGetTensorImpl()->version_counter().enabled();
  made.nbytes = tensor.storage().nbytes();
  const auto same = std::find(identities_.begin(), identities_.end(), tensor.unsafeGetTensorImpl());
  if (same != identities_.end() && !made.made) made.argument = static_cast<int>(same - identities_.begin());
  const bool own = buffer >= first_new_;  // several results may share a buffer that the operator made
  const auto of_it = [&](const Value& value) { return value.buffer == buffer; };
  uncommon_ = uncommon_ || !(own || std::any_of(tensors_.begin(), tensors_.end(), of_it));
  return made;
}

Result NodeRecorder::result(const c10::IValue& value, const Numbering& buffer_of) {
  Result made{.list = value.isList(), .tensors = value.isTensor() || value.isTensorList()};
  if (made.tensors) {
    for_each_tensor(value, [&](const at::Tensor& tensor) { made.outputs.push_back(output(tensor, buffer_of)); });
  }
  return made;
}

bool NodeRecorder::random() const {
  const OperatorFacts& op = *node_.op;
  const auto constant = [&](int argument) -> const c10::IValue& { return node_.arguments[argument].constant; };
  if (!op.random) return false;
  if (op.dropout_argument >= 0 && constant(op.dropout_argument).isDouble() &&
      constant(op.dropout_argument).toDouble() == 0)
    return false;
  return op.train_argument < 0 || !constant(op.train_argument).isBool() || constant(op.train_argument).toBool();
}

/// True if the host needs values, if sizes depend on data, or if no rule covers the operator.
bool NodeRecorder::needs_flush() const {
  const OperatorFacts& op = *node_.op;
  const bool masked = std::any_of(tensors_.begin(), tensors_.end(), [](const Value& value) {
    return value.geometry.dtype == caffe2::TypeMeta::Make<bool>() ||
           value.geometry.dtype == caffe2::TypeMeta::Make<uint8_t>();
  });
  if (uncommon_ || looked_ || !op.known || (op.host_value && (masked || !op.masks_only)) || op.changes_metadata)
    return true;
  const auto first =
      std::find_if(tensors_.begin(), tensors_.end(), [](const Value& value) { return value.buffer >= 0; });
  const c10::Device device = first == tensors_.end() ? c10::Device(c10::kCPU) : first->geometry.device;
  for (const Value& value : tensors_) {
    if (value.buffer >= 0 && !value.geometry.sizes.empty() && value.geometry.device != device) return true;
  }
  for (const Result& result : node_.results) {
    for (const Output& output : result.outputs) {
      if (output.argument >= 0 && !(tensors_[output.argument] == output.value)) return true;  // resized in place
      // A copy to another device
      if (output.made && first != tensors_.end() && output.value.geometry.device != device) return true;
    }
  }
  return false;
}

When NodeRecorder::when() const {
  if (needs_flush()) return When::flush;
  return node_.op->factory || node_.op->reads_no_data || random() ? When::now : When::later;
}

Node NodeRecorder::finish(std::span<const c10::IValue> results, BufferTable& buffers) && {
  first_new_ = static_cast<BufferId>(buffers.size());
  return finish(results, [&](const at::Tensor& tensor) { return buffers.of(tensor); });
}

Node NodeRecorder::finish(StandIns& stand_ins, BufferTable& buffers) && {
  first_new_ = static_cast<BufferId>(buffers.size());
  identities_ = stand_ins.identities();
  return finish(stand_ins.stack(), [&](const at::Tensor& tensor) { return stand_ins.of(tensor); });
}

Node NodeRecorder::finish(std::span<const c10::IValue> results, const Numbering& buffer_of) {
  next_new_ = first_new_;
  for (const c10::IValue& value : results) node_.results.push_back(result(value, buffer_of));
  bool made = false;
  for (const Result& one : node_.results) {
    for (const Output& output : one.outputs) made = made || output.made;
  }
  node_.when = when();
  node_.view = node_.when == When::later && !made && node_.op->writes.empty() && !node_.results.empty();
  node_.buffers_after = next_new_;
  return std::move(node_);
}

}  // namespace bellows::graph::detail
