#include <sstream>
#include <unordered_map>

#include "bellows/graph/execution/schedule.h"
#include "bellows/graph/passes/passes.h"

namespace bellows::graph::detail {
namespace {

/// A text of a group's computation at one place, independent of its sizes.
std::string arithmetic_of(const Expression& expression) {
  std::ostringstream out;
  for (const Term& term : expression.terms) {
    out << name_of(term.function) << int(term.type) << " " << term.index << " " << std::hexfloat << term.value;
    for (int i = 0; i < arity(term.function); ++i) out << "%" << term.terms[i];
    out << ";";
  }
  for (const Store& store : expression.stores)
    out << store.term << " " << store.index << store.update << int(store.type) << ";";
  return out.str();
}

/// Returns: a key for a pointwise group that only updates, place by place, in one pass over memory; "" for other groups
std::string update_kind(const Instruction& one) {
  if (!one.group || one.kernel || one.kind != "pointwise" || one.updates.empty() || !one.results.empty()) return "";
  const auto expression = expression_of(*one.group);
  if (!expression || expression->loops.size() > 1) return "";
  for (const Store& store : expression->stores) {
    if (!store.strides.empty() && store.strides[0] != 1) return "";
  }
  std::string kind = arithmetic_of(*expression);
  for (size_t i = one.group->inputs.size(); i < one.arguments.size(); ++i) {
    kind += "#" + std::to_string(one.arguments[i].number);  // numbers of the program; the same for all
  }
  return kind;
}

/// Numbers that are inputs of each operator separately do not distinguish kinds of updates.
std::string without_numbers(const std::string& kind) {
  return kind.substr(0, kind.find('#'));
}

}  // namespace

int64_t join_updates(Program& program, const PassOptions&) {
  Schedule schedule(program);
  std::unordered_map<std::string, int> unit_of_kind;
  std::vector<std::string> kinds(program.instructions.size());
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const std::string kind = without_numbers(update_kind(program.instructions[i]));
    if (kind.empty()) continue;
    const int at = static_cast<int>(i);
    const auto [known, fresh] = unit_of_kind.emplace(kind, at);
    if (fresh) continue;
    if (schedule.may_merge(known->second, at)) {
      schedule.merge(known->second, at);
    } else {
      known->second = at;
    }
  }
  int64_t fired = 0;
  for (const auto& [kind, unit] : unit_of_kind) {
    if (schedule.members(unit).size() > 1) ++fired;
  }
  for (size_t unit = 0; unit < kinds.size(); ++unit) kinds[unit] = "multi_tensor";
  if (fired) program = schedule.with_groups(program, kinds);
  return fired;
}

}  // namespace bellows::graph::detail
