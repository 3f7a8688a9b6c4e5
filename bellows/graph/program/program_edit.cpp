#include "bellows/graph/program/program_edit.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

namespace bellows::graph::detail {

Uses::Uses(const Program& program)
    : maker(program.values.size(), -1),
      readers(program.values.size()),
      overwriter(program.values.size(), -1),
      outputs(program.values.size(), 0),
      update(program.values.size(), false) {
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& one = program.instructions[i];
    const int at = static_cast<int>(i);
    std::vector<ValueId> read;
    for_each_operand(one, [&](const Operand& operand) {
      read.push_back(operand.value);
      auto& all = readers[operand.value];
      if (all.empty() || all.back() != at) all.push_back(at);
    });
    for (const auto& each : one.updates) {
      overwriter[each.before] = at;
      maker[each.after] = at;
      update[each.after] = true;
    }
    for_each_result(one, [&](const Operand& operand) {
      const bool alias = std::find(read.begin(), read.end(), operand.value) != read.end();
      if (!alias && maker[operand.value] < 0) maker[operand.value] = at;
    });
  }
  for (const auto& output : program.outputs) ++outputs[output.value];
}

const OperatorFacts* operator_named(std::string_view name) {
  const size_t dot = name.find('.');
  const std::string overload(dot == std::string_view::npos ? "" : name.substr(dot + 1));
  const auto found = c10::Dispatcher::singleton().findSchema({std::string(name.substr(0, dot)), overload});
  return found ? &operator_facts(*found) : nullptr;
}

bool is_pure(const Instruction& instruction) {
  const OperatorFacts* const op = instruction.op;
  if (!op || instruction.kernel || !op->known || op->random || op->host_value || op->changes_metadata ||
      !op->writes.empty() || !instruction.updates.empty() || op->reads_no_data)
    return false;
  bool makes = true;
  for_each_result(instruction, [&](const Operand& result) {
    for_each_operand(instruction, [&](const Operand& operand) { makes = makes && operand.value != result.value; });
  });
  return makes;
}

bool is_simple(const Instruction& instruction) {
  const auto is_number = [](const auto& argument) { return argument.number >= 0; };
  return is_pure(instruction) && instruction.results.size() == 1 && !instruction.results[0].list &&
         std::none_of(instruction.arguments.begin(), instruction.arguments.end(), is_number);
}

bool is_one(const Instruction::Argument& argument) {
  const c10::IValue& value = argument.constant;
  return argument.number < 0 && ((value.isInt() && value.toInt() == 1) || (value.isDouble() && value.toDouble() == 1));
}

bool same_places(const Geometry& a, const Geometry& b) {
  return a.sizes == b.sizes && a.strides == b.strides && a.offset == b.offset && a.dtype == b.dtype &&
         a.device == b.device && a.keys.has(c10::DispatchKey::Conjugate) == b.keys.has(c10::DispatchKey::Conjugate) &&
         a.keys.has(c10::DispatchKey::Negative) == b.keys.has(c10::DispatchKey::Negative);
}

bool calls(const Instruction& instruction, std::string_view op) {
  return instruction.op && !instruction.kernel && instruction.op->name == op;
}

bool is_row_major(const Geometry& geometry) {
  int64_t expected = 1;
  for (size_t i = geometry.sizes.size(); i-- > 0;) {
    if (geometry.sizes[i] != 1 && geometry.strides[i] != expected) return false;
    expected *= geometry.sizes[i];
  }
  return geometry.offset == 0;
}

Geometry row_major(Geometry geometry) {
  geometry.offset = 0;
  int64_t stride = 1;
  for (size_t i = geometry.sizes.size(); i-- > 0;) {
    geometry.strides[i] = stride;
    stride *= geometry.sizes[i];
  }
  return geometry;
}

Geometry transposed(Geometry geometry) {
  const size_t dims = geometry.sizes.size();
  std::swap(geometry.sizes[dims - 2], geometry.sizes[dims - 1]);
  std::swap(geometry.strides[dims - 2], geometry.strides[dims - 1]);
  return geometry;
}

bool covers(const Geometry& geometry, size_t nbytes) {
  if (geometry.offset != 0 || geometry.reach() != nbytes) return false;
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (size_t i = 0; i < geometry.sizes.size(); ++i) {
    if (geometry.sizes[i] != 1) dims.emplace_back(geometry.strides[i], geometry.sizes[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t expected = 1;
  for (const auto& dim : dims) {
    if (dim.first != expected) return false;
    expected *= dim.second;
  }
  return true;
}

bool replace_value(Program& program, const Uses& uses, ValueId old, ValueId other) {
  if (uses.overwriter[old] >= 0 || uses.update[old] || program.values[old].nbytes > program.values[other].nbytes)
    return false;
  const int end = uses.overwriter[other];
  if (end >= 0 && !uses.readers[old].empty() && uses.readers[old].back() >= end) return false;
  if (uses.outputs[old]) {  // an output must be a separate buffer
    const bool own = uses.outputs[old] == 1 && uses.is_free(other) && uses.maker[other] >= 0 &&
                     program.values[old].nbytes == program.values[other].nbytes;
    if (!own) return false;
  }
  for (Instruction& one : program.instructions)
    for_each_operand(one, [&](Operand& operand) {
      if (operand.value == old) operand.value = other;
    });
  for (auto& output : program.outputs) {
    if (output.value == old) output.value = other;
  }
  return true;
}

ValueId add_value(Program& program, const Geometry& geometry, size_t nbytes) {
  program.values.push_back({.geometry = geometry, .nbytes = nbytes});
  return static_cast<ValueId>(program.values.size()) - 1;
}

Instruction kernel_instruction(const Instruction& like, std::shared_ptr<const Kernel> kernel, std::string kind,
                               const std::vector<Operand>& operands, const std::vector<Operand>& results) {
  Instruction one{.kernel = std::move(kernel),
                  .kind = std::move(kind),
                  .state = like.state,
                  .default_dtype = like.default_dtype,
                  .late = like.late};
  one.arguments.reserve(operands.size());
  for (const Operand& operand : operands)
    one.arguments.push_back({.kind = OperatorFacts::Kind::tensor, .operands = {operand}});
  one.results.reserve(results.size());
  for (const Operand& result : results) one.results.push_back({.operands = {result}});
  return one;
}

void erase_instructions(Program& program, const std::vector<bool>& erased) {
  size_t kept = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (erased[i]) continue;
    if (kept != i) program.instructions[kept] = std::move(program.instructions[i]);
    ++kept;
  }
  program.instructions.resize(kept);
}

}  // namespace bellows::graph::detail
