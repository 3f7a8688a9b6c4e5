#include "bellows/export/recorded_graph.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/nan_to_num.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "bellows/graph/program/program_edit.h"

namespace bellows::export_detail {

namespace {

using graph::Geometry;
using graph::Instruction;
using graph::ValueId;

/// A batch norm in evaluation mode does not write its statistics, although its schema declares it.
bool keeps_statistics(const Instruction& instruction) {
  return instruction.op->name.find("batch_norm") != std::string::npos && !instruction.updates.empty();
}

bool only_returns_views(const Instruction& instruction) {
  if (!instruction.updates.empty() || instruction.results.empty()) return false;
  const auto reads = [&](ValueId value) {
    return std::any_of(instruction.arguments.begin(), instruction.arguments.end(), [&](const auto& argument) {
      return std::any_of(argument.operands.begin(), argument.operands.end(),
                         [&](const graph::Operand& operand) { return operand.value == value; });
    });
  };
  for (const auto& result : instruction.results) {
    for (const graph::Operand& operand : result.operands) {
      if (!reads(operand.value)) return false;
    }
  }
  return true;
}

}  // namespace

VariedSizes sizes_of(const std::vector<Geometry>& geometries) {
  VariedSizes result(geometries[0].sizes.size());
  for (const Geometry& one : geometries) {
    for (size_t i = 0; i < result.size(); ++i) result[i].values.push_back(one.sizes[i]);
  }
  return result;
}

std::vector<Geometry> VariedOperand::geometries() const {
  std::vector<Geometry> result;
  result.reserve(operands.size());
  for (const graph::Operand* one : operands) result.push_back(one->geometry);
  return result;
}

RecordedGraph::RecordedGraph(const Recordings& recordings, std::string caller)
    : recordings_(recordings), caller_(std::move(caller)) {
  const graph::Program& program = recordings_.calls[0].program;
  for (size_t i = 0; i < program.inputs.size(); ++i) inputs_[program.inputs[i]] = i;
  find_live();
}

void RecordedGraph::find_live() {
  const graph::Program& program = recordings_.calls[0].program;
  live_.assign(program.instructions.size(), false);
  std::vector<bool> needed(program.values.size());
  for (const Instruction& instruction : program.instructions) {
    if (!keeps_statistics(instruction)) continue;
    for (const auto& update : instruction.updates) same_[update.after] = update.before;
  }
  const auto need = [&](ValueId value) {
    if (value < 0) return;
    needed[value] = true;
    for (auto same = same_.find(value); same != same_.end(); same = same_.find(same->second))
      needed[same->second] = true;
  };
  for (const graph::Operand& result : recordings_.calls[0].results) need(result.value);
  for (size_t i = program.instructions.size(); i-- > 0;) {
    const Instruction& instruction = program.instructions[i];
    if (only_returns_views(instruction)) continue;
    bool live = false;
    graph::detail::for_each_result(
        instruction, [&](const graph::Operand& result) { live = live || (result.value >= 0 && needed[result.value]); });
    if (!keeps_statistics(instruction)) {
      for (const auto& update : instruction.updates) live = live || needed[update.after];
    }
    live_[i] = live;
    if (live) graph::detail::for_each_operand(instruction, [&](const graph::Operand& one) { need(one.value); });
  }
}

ValueId RecordedGraph::settled(ValueId id) const {
  for (auto same = same_.find(id); same != same_.end(); same = same_.find(id)) id = same->second;
  return id;
}

std::optional<size_t> RecordedGraph::input_of(ValueId id) const {
  const auto input = inputs_.find(settled(id));
  return input == inputs_.end() ? std::nullopt : std::optional(input->second);
}

const InputSource* RecordedGraph::source(ValueId id) const {
  const auto input = input_of(id);
  return input ? &recordings_.calls[0].sources[*input] : nullptr;
}

std::optional<double> RecordedGraph::scalar(const VariedOperand& operand) const {
  if (!operand.defined() || !operand.operands[0]->geometry.sizes.empty()) return {};
  std::optional<double> result;
  const auto input = inputs_.find(operand.value());
  if (input == inputs_.end()) return {};
  for (const RecordedCall& call : recordings_.calls) {
    const InputSource& from = call.sources[input->second];
    if (from.argument >= 0 || !from.name.empty() || from.tensor.numel() != 1) return {};
    const double value = from.tensor.to(c10::kCPU).item<double>();
    if (result && value != *result) return {};
    result = value;
  }
  return result;
}

std::optional<Varied> RecordedGraph::integers(size_t input) const {
  Varied number;
  for (const RecordedCall& call : recordings_.calls) {
    const at::Tensor& one = call.sources[input].tensor;
    const double value = one.numel() == 1 ? one.item<double>() : 0.5;
    if (value != std::floor(value)) return {};
    number.values.push_back(static_cast<int64_t>(value));
  }
  return number;
}

bool RecordedGraph::is_same(size_t input) const {
  const at::Tensor& first = recordings_.calls[0].sources[input].tensor;
  return std::all_of(recordings_.calls.begin(), recordings_.calls.end(), [&](const RecordedCall& call) {
    const at::Tensor& one = call.sources[input].tensor;
    return one.sizes() == first.sizes() && at::equal(one.nan_to_num(), first.nan_to_num());
  });
}

VariedOperand RecordedGraph::argument(size_t index, size_t argument, size_t position) const {
  VariedOperand all;
  for (size_t i = 0; i < count(); ++i)
    all.operands.push_back(&instruction(index, i).arguments.at(argument).operands.at(position));
  return all;
}

VariedOperand RecordedGraph::result(size_t index, size_t result, size_t position) const {
  VariedOperand all;
  for (size_t i = 0; i < count(); ++i)
    all.operands.push_back(&instruction(index, i).results.at(result).operands.at(position));
  return all;
}

VariedOperand RecordedGraph::function_result(size_t index) const {
  VariedOperand all;
  for (const RecordedCall& call : recordings_.calls) all.operands.push_back(&call.results[index]);
  return all;
}

void RecordedGraph::fail(size_t index, const std::string& problem, const std::string& advice) const {
  std::string where;
  if (index < instructions()) {
    where = ". It is operator " + std::to_string(index + 1) + " of the recording, " + instruction(index).op->name;
    graph::detail::for_each_operand(instruction(index), [&](const graph::Operand& operand) {
      const InputSource* from = source(operand.value);
      if (from && !from->name.empty()) where += ", reads `" + from->name + "`";
    });
    const std::string& site = recordings_.calls[0].sites[index];
    if (!site.empty()) where += ", called in " + site;
  }
  TORCH_CHECK_VALUE(false, caller_, ": ", problem, where, ". ", advice);
}

}  // namespace bellows::export_detail
