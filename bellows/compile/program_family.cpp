#include "bellows/compile/program_family.h"

#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include <algorithm>

namespace bellows::compile_detail {
namespace {

/// Returns a hash of a program's operators and of the values that they use, without sizes and numbers. If two different
/// programs have the same hash, they only share less code than possible.
size_t hash_of_operators(const graph::Program& program) {
  size_t hash = program.instructions.size();
  const auto add = [&](size_t number) { hash = c10::hash_combine(hash, number); };
  const auto add_operands = [&](const std::vector<graph::Operand>& operands) {
    for (const graph::Operand& operand : operands) {
      add(static_cast<size_t>(operand.value));
      add(operand.geometry.sizes.size());
      add(static_cast<size_t>(operand.geometry.dtype.toScalarType()));
    }
  };
  for (const graph::Instruction& one : program.instructions) {
    add(std::hash<std::string>()(one.op->name));
    for (const auto& argument : one.arguments) add_operands(argument.operands);
    for (const auto& result : one.results) add_operands(result.operands);
  }
  return hash;
}

std::vector<graph::Geometry> inputs_of(const graph::Program& program) {
  std::vector<graph::Geometry> made;
  made.reserve(program.inputs.size());
  for (const graph::ValueId value : program.inputs) made.push_back(program.values[value].geometry);
  return made;
}

/// Describes the inputs whose sizes differ from those of an earlier program.
std::string differences(const std::vector<graph::Geometry>& earlier, const std::vector<graph::Geometry>& inputs) {
  constexpr int most_named = 4;
  std::string text;
  int different = 0;
  for (size_t i = 0; i < std::min(earlier.size(), inputs.size()); ++i) {
    if (earlier[i] == inputs[i] || different++ >= most_named) continue;
    text += c10::str(text.empty() ? "  sizes: " : ", ", inputs[i].text(), " instead of ", earlier[i].text());
  }
  if (different > most_named) text += c10::str(", and ", different - most_named, " other inputs");
  return text.empty() ? text : text + " in an earlier program with the same operators\n";
}

}  // namespace

KernelFamily& ProgramFamilies::of(const graph::Program& program, std::string& report) {
  const size_t hash = hash_of_operators(program);
  if (all_.size() == most_kept && !all_.contains(hash)) all_.clear();
  Family& family = all_[hash];
  std::vector<graph::Geometry> inputs = inputs_of(program);
  if (family.is_new) {
    family.inputs = std::move(inputs);
    family.is_new = false;
  } else {
    report += differences(family.inputs, inputs);
  }
  return family.kernels;
}

}  // namespace bellows::compile_detail
