#include "bellows/graph/recording/frozen.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "bellows/graph/passes/passes.h"
#include "bellows/graph/program/program_edit.h"
#include "bellows/kernels/parallel.h"

namespace bellows::graph {

std::vector<bool> are_frozen(std::span<const c10::Storage> buffers, std::span<const at::Tensor> tensors) {
  std::vector<bool> result;
  result.reserve(buffers.size());
  for (const c10::Storage& buffer : buffers) {
    result.push_back(std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
      return tensor.storage().unsafeGetStorageImpl() == buffer.unsafeGetStorageImpl();
    }));
  }
  return result;
}

Remaining freeze_inputs(Program& program, std::span<const c10::Storage> inputs, const std::vector<bool>& frozen) {
  detail::say_evaluations(program, {});
  const detail::Uses uses(program);
  std::vector<int> moved(program.inputs.size(), -1);
  std::vector<ValueId> left;
  Remaining remaining;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const ValueId value = program.inputs[i];
    const bool written = std::any_of(program.outputs.begin(), program.outputs.end(), [&](const auto& output) {
      return output.input == static_cast<int>(i) && output.value != value;
    });
    if (frozen[i] && !written && uses.overwriter[value] < 0) {
      program.constants.push_back({.value = value, .tensor = program.values[value].geometry.over(inputs[i])});
      continue;
    }
    moved[i] = static_cast<int>(left.size());
    left.push_back(value);
    remaining.inputs.push_back(static_cast<int>(i));
  }
  std::vector<Program::Output> outputs;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    Program::Output output = program.outputs[i];
    if (output.input >= 0 && moved[output.input] < 0) continue;  // already in place
    if (output.input >= 0) output.input = moved[output.input];
    outputs.push_back(output);
    remaining.outputs.push_back(static_cast<int>(i));
  }
  program.inputs = std::move(left);
  program.outputs = std::move(outputs);
  return remaining;
}

FrozenRunner::FrozenRunner(Program program, Remaining left) : runner_(std::move(program)), left_(std::move(left)) {}

void FrozenRunner::run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers,
                       std::span<c10::Storage> outputs) {
  const auto handed_over = c10::make_scope_exit([&] {  // also after an error
    for (size_t i = 0; i < outputs_.size(); ++i) outputs[left_.outputs[i]] = std::move(outputs_[i]);
    inputs_.clear();
    outputs_.clear();
  });
  inputs_.reserve(left_.inputs.size());
  for (const int i : left_.inputs) inputs_.push_back(std::move(inputs[i]));
  outputs_.resize(left_.outputs.size());
  kernels::with_work_stealing([&] { runner_.run(inputs_, numbers, outputs_); });
}

}  // namespace bellows::graph
