#include "bellows/graph/recording/trial_results.h"

#include <c10/util/hash.h>

#include <algorithm>

#include "bellows/graph/program/program_edit.h"
#include "bellows/graph/recording/match.h"

namespace bellows::graph::detail {
namespace {

/// The buffers of an operator's arguments, in the order of their first use.
std::vector<BufferId> buffers_of(const Instruction& instruction) {
  std::vector<BufferId> buffers;
  for_each_operand(instruction, [&](const Operand& operand) {
    if (operand.value >= 0 && std::find(buffers.begin(), buffers.end(), operand.value) == buffers.end())
      buffers.push_back(operand.value);
  });
  return buffers;
}

BufferId place_of(BufferId buffer, const std::vector<BufferId>& buffers) {
  if (buffer < 0) return buffer;
  return static_cast<BufferId>(std::find(buffers.begin(), buffers.end(), buffer) - buffers.begin());
}

size_t hash_of(const Instruction& instruction) {
  size_t hash = std::hash<const void*>()(instruction.op);
  for_each_operand(instruction, [&](const Operand& operand) {
    for (const int64_t size : operand.geometry.sizes) hash = c10::hash_combine(hash, static_cast<size_t>(size));
  });
  return hash;
}

/// Compares an operator with a known one, whose buffers are numbered by their places.
bool same_arguments(const RecordedOperator& known, const RecordedOperator& recorded,
                    const std::vector<BufferId>& buffers) {
  using Argument = Instruction::Argument;
  const auto &a = known.instruction.arguments, &b = recorded.instruction.arguments;
  if (known.instruction.op != recorded.instruction.op || !(known.state == recorded.state)) return false;
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const Argument& x, const Argument& y) {
    const auto same_operand = [&](const Operand& v, const Operand& w) {
      return v.value == place_of(w.value, buffers) && v.geometry == w.geometry;
    };
    return x.kind == y.kind && same_constant(x.constant, y.constant) &&
           std::equal(x.operands.begin(), x.operands.end(), y.operands.begin(), y.operands.end(), same_operand);
  });
}

}  // namespace

std::optional<RecordedOperator> TrialResults::find(const RecordedOperator& begun, BufferId next) const {
  const auto [first, last] = known_.equal_range(hash_of(begun.instruction));
  if (first == last) return {};
  const std::vector<BufferId> buffers = buffers_of(begun.instruction);
  const auto found =
      std::find_if(first, last, [&](const auto& one) { return same_arguments(one.second, begun, buffers); });
  if (found == last) return {};
  RecordedOperator made = found->second;
  made.instruction.arguments = begun.instruction.arguments;
  made.buffers_after = next;
  const auto count = static_cast<BufferId>(buffers.size());
  for_each_result(made.instruction, [&](Operand& operand) {
    if (operand.value >= 0)
      operand.value = operand.value < count ? buffers[operand.value] : next + operand.value - count;
    made.buffers_after = std::max(made.buffers_after, operand.value + 1);
  });
  return made;
}

void TrialResults::add(const RecordedOperator& recorded) {
  if (known_.size() == most_kept) known_.clear();
  std::vector<BufferId> buffers = buffers_of(recorded.instruction);
  RecordedOperator known = recorded;
  for_each_operand(known.instruction, [&](Operand& operand) { operand.value = place_of(operand.value, buffers); });
  for_each_recorded_result(recorded, [&](const Operand& operand, const RecordedOperator::Result& facts) {
    if (facts.made) buffers.push_back(operand.value);
  });
  for_each_result(known.instruction, [&](Operand& operand) { operand.value = place_of(operand.value, buffers); });
  known_.emplace(hash_of(recorded.instruction), std::move(known));
}

}  // namespace bellows::graph::detail
