#include "bellows/export/first_difference.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <set>
#include <utility>

#include "bellows/compile/result_distance.h"
#include "bellows/core/error.h"
#include "bellows/export/comparison.h"
#include "bellows/export/recorded_graph.h"
#include "bellows/graph/execution/program_runner.h"
#include "bellows/graph/program/program_edit.h"
#include "bellows/quant/inference_guard.h"

namespace bellows::export_detail {

namespace {

/// Returns the instructions whose first result can be an output: a floating-point tensor that is not written later.
std::vector<size_t> comparable_instructions(const RecordedGraph& graph) {
  std::set<graph::ValueId> overwritten;
  for (size_t i = 0; i < graph.instructions(); ++i)
    for (const auto& update : graph.instruction(i).updates) overwritten.insert(update.before);
  std::vector<size_t> result;
  for (size_t i = 0; i < graph.instructions(); ++i) {
    const graph::Instruction& one = graph.instruction(i);
    if (!graph.is_live(i) || one.results.empty() || one.results[0].list || one.results[0].operands.empty()) continue;
    const graph::Operand& operand = one.results[0].operands[0];
    const bool floating = operand.value >= 0 && at::isFloatingType(operand.geometry.dtype.toScalarType());
    if (floating && !overwritten.contains(operand.value)) result.push_back(i);
  }
  return result;
}

/// Returns the recordings of a function that returns the results of these instructions.
Recordings with_results_of(const Recordings& recordings, const std::vector<size_t>& instructions) {
  Recordings probe = recordings;
  probe.output_names.clear();
  for (const size_t i : instructions) probe.output_names.push_back("operator_" + std::to_string(i + 1));
  for (RecordedCall& call : probe.calls) {
    call.results.clear();
    for (const size_t i : instructions) call.results.push_back(call.program.instructions[i].results[0].operands[0]);
  }
  return probe;
}

/// Runs the recorded operators of the first call, and returns its results.
std::vector<at::Tensor> recorded_results(const RecordedCall& call) {
  graph::Program program = call.program;
  for (const graph::Operand& result : call.results) program.outputs.push_back({.value = result.value});
  std::vector<c10::Storage> inputs, outputs(call.results.size());
  for (const InputSource& source : call.sources) {
    const bool may_change = source.argument < 0 && source.name.empty();
    inputs.push_back((may_change ? source.tensor.clone() : source.tensor).storage());
  }
  const std::vector<c10::IValue> numbers = program.numbers;
  graph::ProgramRunner::in_order(std::move(program))->run(inputs, numbers, outputs);
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < outputs.size(); ++i) tensors.push_back(call.results[i].geometry.over(outputs[i]));
  return tensors;
}

std::string described(const RecordedGraph& graph, size_t index, const std::string& difference) {
  std::string text = "The first operator that differs is " + graph.instruction(index).op->name + ", operator " +
                     std::to_string(index + 1) + " of the recording";
  graph::detail::for_each_operand(graph.instruction(index), [&](const graph::Operand& operand) {
    const InputSource* source = graph.source(operand.value);
    if (source && !source->name.empty()) text += ", which reads `" + source->name + "`";
  });
  return text + ". Its result " + difference + ".";
}

}  // namespace

std::string first_difference(const Recordings& recordings, const RunExported& run, bool low_precision) {
  const c10::NoGradGuard no_gradients;
  const quant::InferenceGuard inference;
  const RecordedGraph graph(recordings, "export");
  const std::vector<size_t> instructions = comparable_instructions(graph);
  const Recordings probe = with_results_of(recordings, instructions);
  const std::vector<at::Tensor> expected = recorded_results(probe.calls[0]);
  std::vector<at::Tensor> found;
  try {
    found = run(probe);
  } catch (const std::exception&) {
    return "";  // the results of some operators cannot be outputs
  }
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    if (found[i].sizes() != expected[i].sizes())
      return described(graph, instructions[i],
                       c10::str("has sizes ", found[i].sizes(), ", expected ", expected[i].sizes()));
    const auto distance = compile_detail::Distance::between(expected[i].to(at::kFloat), found[i].to(at::kFloat));
    if (!(distance.largest <= accepted_difference(expected[i].scalar_type(), distance.scale, low_precision)))
      return described(graph, instructions[i], c10::str("differs by ", distance.largest));
  }
  return "";
}

void check_operators(const Recordings& recordings, const std::function<void()>& check, const RunExported& run,
                     bool low_precision) {
  try {
    check();
  } catch (const c10::ValueError& error) {
    std::string first;
    try {
      first = first_difference(recordings, run, low_precision);
    } catch (const std::exception&) {
      // Such as too little memory for the results of all operators. The error of the check is what matters.
    }
    if (first.empty()) throw;
    TORCH_CHECK_VALUE(false, user_message(error), " ", first);
  }
}

}  // namespace bellows::export_detail
