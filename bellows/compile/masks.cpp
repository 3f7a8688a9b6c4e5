#include "bellows/compile/masks.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "bellows/graph/passes/expression.h"
#include "bellows/graph/program/program_edit.h"

namespace bellows::compile_detail {
namespace {

using graph::Instruction;
using graph::Operand;
using graph::Program;
using graph::ValueId;
using graph::detail::Uses;

/// The operand of an instruction that reads one tensor, or null.
const Operand* only_operand(const Instruction& one) {
  const Operand* found = nullptr;
  int count = 0;
  graph::detail::for_each_operand(one, [&](const Operand& operand) {
    found = &operand;
    ++count;
  });
  return count == 1 ? found : nullptr;
}

bool is_fusable(const Instruction& one) {
  return one.op && !one.kernel && !one.group && graph::detail::is_pure(one) && one.updates.empty() &&
         graph::expression_of(one).has_value();
}

/// Copies the computations of widened masks to their readers.
class MaskWidening {
 public:
  explicit MaskWidening(Program& program) : program_(program), uses_(program), chains_(program.values.size()) {}

  int64_t run() {
    std::vector<Instruction> made;
    made.reserve(program_.instructions.size());
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      Instruction one = std::move(program_.instructions[i]);
      find_chain(one);
      if (widened_by(one) == graph::no_value) copy_chains(one, made);
      made.push_back(std::move(one));
    }
    program_.instructions = std::move(made);
    return copies_;
  }

 private:
  /// Returns the wide value that an instruction computes from a mask, or no_value.
  ValueId widened_by(const Instruction& one) const {
    if (one.results.size() != 1 || one.results[0].operands.size() != 1) return graph::no_value;
    const ValueId value = one.results[0].operands[0].value;
    return value != graph::no_value && !chains_[value].empty() ? value : graph::no_value;
  }

  /// Remembers the instructions that compute the result from a mask. A chain of more than three instructions would
  /// cost more than the memory traffic that it saves.
  void find_chain(const Instruction& one) {
    constexpr size_t longest = 3;
    const Operand* const from = only_operand(one);
    if (!from || one.results.size() != 1 || one.results[0].operands.size() != 1 || !is_fusable(one)) return;
    const Operand& to = one.results[0].operands[0];
    if (to.value == graph::no_value || !uses_.is_free(to.value) || uses_.overwriter[from->value] >= 0 ||
        to.geometry.sizes != from->geometry.sizes || to.geometry.dtype.itemsize() == 1)
      return;
    std::vector<Instruction>& chain = chains_[to.value];
    const bool is_mask = from->geometry.dtype == caffe2::TypeMeta::Make<bool>();
    if (is_mask || !chains_[from->value].empty()) chain = chains_[from->value];
    if ((is_mask || !chain.empty()) && chain.size() < longest) {
      chain.push_back(one);
    } else {
      chain.clear();
    }
  }

  /// Gives an instruction its own copies of the wide values that it reads. The first reader keeps the original.
  void copy_chains(Instruction& one, std::vector<Instruction>& made) {
    if (!is_fusable(one)) return;
    std::unordered_map<ValueId, ValueId> copies;
    graph::detail::for_each_operand(one, [&](Operand& operand) {
      const ValueId value = operand.value;
      if (chains_[value].empty() || !seen_[value]++) return;
      const auto [place, is_new] = copies.try_emplace(value, graph::no_value);
      if (is_new) place->second = copy_of(value, made);
      operand.value = place->second;
    });
  }

  ValueId copy_of(ValueId value, std::vector<Instruction>& made) {
    ValueId from = graph::no_value;
    for (Instruction copy : std::vector<Instruction>(chains_[value])) {
      Operand& to = copy.results[0].operands[0];
      const Program::ValueFacts facts = program_.values[to.value];
      if (from != graph::no_value)
        graph::detail::for_each_operand(copy, [&](Operand& operand) { operand.value = from; });
      from = to.value = graph::detail::add_value(program_, facts.geometry, facts.nbytes);
      copy.late = true;  // otherwise, fusion could move it back to the original
      made.push_back(std::move(copy));
      chains_.emplace_back();
      ++copies_;
    }
    return from;
  }

  Program& program_;
  const Uses uses_;
  std::vector<std::vector<Instruction>> chains_;  ///< for each value: the instructions that compute it from a mask
  std::unordered_map<ValueId, int> seen_;         ///< readers so far
  int64_t copies_ = 0;
};

}  // namespace

graph::Pass masks_pass() {
  return {.name = "masks",
          .what = "computes scaled dropout masks again where they are read, instead of storing them",
          .run = [](Program& program, const graph::PassOptions&) { return MaskWidening(program).run(); }};
}

}  // namespace bellows::compile_detail
