#include "bellows/export/recorder.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "bellows/core/exporting.h"
#include "bellows/graph/program/program_builder.h"
#include "bellows/graph/recording/record.h"
#include "bellows/quant/inference_guard.h"
#include "bellows/system/call_site.h"
#include "bellows/tap/op_tap.h"

namespace bellows::export_detail {

namespace {

using graph::BufferId;
using graph::RecordedOperator;
using graph::When;

/// " in forward(…) (program+0x12)", or an empty string.
std::string in_code() {
  const std::string site = call_site();
  return site.empty() ? "" : " in " + site;
}

/// Returns whether the instruction is a batch norm in evaluation mode. Its schema declares writes that do not happen.
bool is_batch_norm_in_evaluation(const graph::Instruction& instruction) {
  if (!instruction.op->name.starts_with("aten::native_batch_norm") &&
      !instruction.op->name.starts_with("aten::cudnn_batch_norm"))
    return false;
  const c10::IValue& training = instruction.arguments.at(5).constant;
  return training.isBool() && !training.toBool();
}

class RecordingTap : public tap::OpTap {
 public:
  RecordingTap(std::span<const Named> named, bool sites) : sites_wanted_(sites) {
    for (const auto& [name, tensor] : named) add_known(tensor, {.argument = -1, .tensor = tensor, .name = name});
  }

  void add_argument(const at::Tensor& tensor, int index) {
    if (tensor.defined()) add_known(tensor, {.argument = index, .tensor = tensor, .name = {}});
  }

  void call(const tap::OpCall& op, tap::Stack& stack) override {
    if (allocates(op)) return allocate(op, stack);
    graph::detail::OperatorRecorder recorder(op, stack, buffers_);
    const graph::OperatorFacts& facts = recorder.begun().op();
    const auto arguments = op.arguments(stack);
    for (size_t i = 0; i < arguments.size(); ++i) {
      const bool written =
          std::find(facts.writes.begin(), facts.writes.end(), static_cast<int>(i)) != facts.writes.end();
      graph::detail::for_each_tensor(arguments[i], [&](const at::Tensor& tensor) { note_outer(tensor, op, written); });
    }
    check_host_read(op, facts);
    op.next(stack);
    const auto results = op.results(stack);
    recorded_.push_back(std::make_unique<RecordedOperator>(std::move(recorder).finish(results, buffers_)));
    made_ = buffers_.size();
    if (sites_wanted_) sites_.push_back(call_site());
    check(op);
    check_writes(op);
  }

  RecordedCall finish(const std::vector<at::Tensor>& results) {
    std::vector<BufferId> of_results;
    for (const at::Tensor& result : results) {
      TORCH_CHECK_VALUE(result.defined() && graph::is_plain(result),
                        "export: expected plain tensors as results of the function, got ",
                        result.defined() ? "another kind of tensor" : "an undefined tensor", ".");
      of_results.push_back(buffers_.of(result));
      note_outer(result);
    }
    std::vector<const RecordedOperator*> operators;
    for (const auto& one : recorded_) operators.push_back(one.get());
    graph::detail::BuiltProgram built = graph::detail::build_program(operators, [](BufferId) { return true; });

    RecordedCall call;
    std::unordered_map<BufferId, graph::ValueId> last;
    for (size_t i = 0; i < built.inputs.size(); ++i) last[built.inputs[i]] = built.program.inputs[i];
    for (size_t i = 0; i < built.outputs.size(); ++i) last[built.outputs[i]] = built.program.outputs[i].value;
    call.program = std::move(built.program);
    for (size_t i = 0; i < built.inputs.size(); ++i) {
      const InputSource& source = outer_.at(built.inputs[i]);
      call.program.values[call.program.inputs[i]].geometry = graph::Geometry::of(source.tensor);
      call.sources.push_back(source);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (!last.contains(of_results[i])) last[of_results[i]] = add_untouched(call, of_results[i]);
      call.results.push_back({.value = last[of_results[i]], .geometry = graph::Geometry::of(results[i])});
    }
    call.program.outputs.clear();
    call.result_tensors = results;
    call.sites = std::move(sites_);
    call.sites.resize(call.program.instructions.size());
    return call;
  }

 private:
  void add_known(const at::Tensor& tensor, const InputSource& source) {
    if (!tensor.defined() || !graph::is_plain(tensor)) return;
    const BufferId buffer = buffers_.of(tensor);
    outer_.try_emplace(buffer, source);
    made_ = buffers_.size();
  }

  /// Remembers a tensor that no recorded operator has created. Its values may change later, so they are copied.
  void note_outer(const at::Tensor& tensor, const tap::OpCall& op, bool written) {
    if (!tensor.defined()) return;
    TORCH_CHECK_VALUE(graph::is_plain(tensor), "export: operator ", op.qualified_name(),
                      " reads a tensor that is not plain (sparse, quantized, nested or oneDNN)", in_code(),
                      ". Convert it to a plain tensor with to_dense() or dequantize().");
    note_outer(tensor, written);
  }
  void note_outer(const at::Tensor& tensor, bool written = false) {
    const BufferId buffer = buffers_.of(tensor);
    const bool allocated = allocated_.contains(buffer);
    if (outer_.contains(buffer) || (static_cast<size_t>(buffer) < made_ && !allocated)) return;
    outer_.emplace(buffer, InputSource{.argument = -1,
                                       .tensor = allocated ? allocated_.at(buffer).clone() : tensor.clone(),
                                       .name = {},
                                       .uninitialized = allocated && written});
    owners_.push_back(tensor);
  }

  /// Allocations are not recorded: the host may write the memory without an operator, as in at::tensor({1, 2}).
  static bool allocates(const tap::OpCall& op) {
    return op.name() == "aten::empty" || op.name() == "aten::empty_strided" || op.name() == "aten::empty_like" ||
           op.name() == "aten::new_empty" || op.name() == "aten::new_empty_strided";
  }
  void allocate(const tap::OpCall& op, tap::Stack& stack) {
    op.next(stack);
    const at::Tensor made = op.results(stack)[0].toTensor();
    if (!graph::is_plain(made)) return;
    allocated_.emplace(buffers_.of(made), made);
    made_ = buffers_.size();
  }

  static void check_host_read(const tap::OpCall& op, const graph::OperatorFacts& facts) {
    TORCH_CHECK_VALUE(facts.results == 0 || !facts.host_value || facts.masks_only, "export: operator ",
                      op.qualified_name(), in_code(),
                      " reads values on the host, or the sizes of its result depend on values. An exported graph "
                      "cannot branch on values: use where(), masks or sizes instead.");
  }

  void check(const tap::OpCall& op) {
    const RecordedOperator& last = *recorded_.back();
    for (const auto& result : last.instruction.results) {
      for (const graph::Operand& operand : result.operands) {
        TORCH_CHECK_VALUE(operand.value != graph::opaque_value, "export: operator ", op.qualified_name(), in_code(),
                          " returns a tensor that is not plain (sparse, quantized, nested or oneDNN).");
      }
    }
    for (const auto& argument : last.instruction.arguments) {
      if (argument.kind != graph::OperatorFacts::Kind::optional_tensor_list) continue;
      for (const graph::Operand& operand : argument.operands) {
        TORCH_CHECK_VALUE(operand.value < 0 || operand.geometry.dtype != caffe2::TypeMeta::Make<bool>() ||
                              !last.instruction.op->writes.empty(),
                          "export: operator ", op.qualified_name(), in_code(),
                          " selects elements with a mask, so the sizes of its result depend on values. Use where() or "
                          "multiply by the mask instead.");
      }
    }
  }

  void check_writes(const tap::OpCall& op) {
    const RecordedOperator& last = *recorded_.back();
    if (is_batch_norm_in_evaluation(last.instruction)) return;
    for (const BufferId buffer : last.written()) {
      const auto source = outer_.find(buffer);
      if (source == outer_.end()) continue;
      TORCH_CHECK_VALUE(source->second.argument < 0, "export: operator ", op.qualified_name(), in_code(),
                        " writes input ", source->second.argument,
                        " of the function. Exported functions must not change their inputs; clone() the input first.");
      TORCH_CHECK_VALUE(source->second.name.empty(), "export: operator ", op.qualified_name(), in_code(),
                        " writes the tensor `", source->second.name,
                        "` of the model. Exported functions must not change the model. Call eval(), or return the new "
                        "value as a result.");
    }
  }

  graph::ValueId add_untouched(RecordedCall& call, BufferId buffer) const {
    const InputSource& source = outer_.at(buffer);
    const auto value = static_cast<graph::ValueId>(call.program.values.size());
    call.program.values.push_back({.geometry = graph::Geometry::of(source.tensor), .nbytes = source.tensor.nbytes()});
    call.program.inputs.push_back(value);
    call.sources.push_back(source);
    return value;
  }

  const bool sites_wanted_;
  graph::detail::BufferTable buffers_;
  size_t made_ = 0;  ///< buffers below this number are known
  std::vector<std::unique_ptr<RecordedOperator>> recorded_;
  std::unordered_map<BufferId, InputSource> outer_;
  std::unordered_map<BufferId, at::Tensor> allocated_;
  std::vector<at::Tensor> owners_;  ///< keep storages alive, so that their buffers stay valid
  std::vector<std::string> sites_;
};

}  // namespace

RecordedCall record_call(const Forward& function, const std::vector<at::Tensor>& inputs, std::span<const Named> named,
                         bool sites) {
  const quant::InferenceGuard inference;
  const ExportingGuard exporting;
  const auto recording = std::make_shared<RecordingTap>(named, sites);
  std::vector<at::Tensor> results;
  // The arguments must not share storage, because the recording tells tensors apart by their storage.
  std::vector<at::Tensor> arguments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    arguments.push_back(inputs[i].defined() ? inputs[i].clone() : inputs[i]);
    recording->add_argument(arguments.back(), static_cast<int>(i));
  }
  {
    const tap::OpTapGuard guard(recording);
    results = function(arguments);
  }
  return recording->finish(results);
}

}  // namespace bellows::export_detail
