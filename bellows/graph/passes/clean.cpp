#include <ATen/core/dispatch/Dispatcher.h>

#include <sstream>
#include <unordered_map>

#include "bellows/graph/passes/passes.h"
#include "bellows/graph/program/program_edit.h"
#include "bellows/graph/recording/match.h"

namespace bellows::graph::detail {
namespace {

/// True if the operator may have side effects: random numbers, output, files.
bool has_effects(const Instruction& one) {
  return one.op && !one.kernel && (!one.op->known || one.op->random || one.op->host_value);
}

/// Instructions with equal texts compute the same if their constants are equal.
std::string key_of(const Instruction& one) {
  std::ostringstream out;
  out << one.op->name << " " << one.state;
  for (const auto& argument : one.arguments) {
    out << "," << argument.number;
    for (const Operand& operand : argument.operands)
      out << "%" << operand.value << (operand.value == no_value ? "" : operand.geometry.text());
  }
  return out.str();
}

bool same(const Instruction& a, const Instruction& b) {
  if (a.op != b.op || a.state != b.state || a.arguments.size() != b.arguments.size()) return false;
  for (size_t i = 0; i < a.arguments.size(); ++i) {
    const auto& x = a.arguments[i];
    const auto& y = b.arguments[i];
    if (x.number != y.number || x.operands != y.operands) return false;
    if (!x.is_tensors() && x.number < 0 && (!comparable(x.constant) || !same_constant(x.constant, y.constant)))
      return false;
  }
  return true;
}

/// Replaces all results of one instruction by those of the other. Returns false if this is not possible.
bool replace_results(Program& program, const Instruction& old, const Instruction& other) {
  const Uses uses(program);
  std::vector<std::pair<ValueId, ValueId>> pairs;
  for (size_t i = 0; i < old.results.size(); ++i) {
    const auto& a = old.results[i].operands;
    const auto& b = other.results[i].operands;
    if (a.size() != b.size()) return false;
    for (size_t k = 0; k < a.size(); ++k) {
      if ((a[k].value == no_value) != (b[k].value == no_value)) return false;
      if (a[k].value == no_value) continue;
      if (!same_places(a[k].geometry, b[k].geometry) || uses.outputs[a[k].value]) return false;
      pairs.emplace_back(a[k].value, b[k].value);
    }
  }
  if (pairs.size() != 1) return false;
  return replace_value(program, uses, pairs[0].first, pairs[0].second);
}

/// The key of a cast. Sizes and strides do not matter if the cast keeps the places of its input.
std::string cast_key_of(const Program& program, const Instruction& one) {
  if (one.op->name != "aten::_to_copy" || one.results.size() != 1) return "";
  const Operand& from = one.arguments[0].operands[0];
  const Operand& to = one.results[0].operands[0];
  if (from.value == no_value || from.geometry.strides != to.geometry.strides ||
      from.geometry.sizes != to.geometry.sizes || to.geometry.offset != 0 || from.geometry.device != to.geometry.device)
    return "";
  Geometry start = from.geometry;
  start.offset = 0;
  const size_t bytes = start.reach();
  if (!covers(start, bytes) || !covers(to.geometry, program.values[to.value].nbytes)) return "";
  return c10::str(from.value, " ", from.geometry.offset, " ", bytes, " ", from.geometry.dtype.name(), " ",
                  to.geometry.dtype.name());
}

bool same_kind_of_tensor(const Program& program, const Instruction& a, const Instruction& b) {
  return program.values[a.results[0].operands[0].value].nbytes == program.values[b.results[0].operands[0].value].nbytes;
}

}  // namespace

int64_t drop_dead_code(Program& program, const PassOptions&) {
  std::vector<bool> live(program.values.size(), false), dead(program.instructions.size(), false);
  for (const auto& output : program.outputs) live[output.value] = true;
  int64_t fired = 0;
  for (size_t i = program.instructions.size(); i-- > 0;) {
    const Instruction& one = program.instructions[i];
    bool needed = has_effects(one) || (one.results.empty() && one.updates.empty());
    for_each_result(one, [&](const Operand& operand) { needed = needed || live[operand.value]; });
    for (const auto& update : one.updates) needed = needed || live[update.after];
    dead[i] = !needed;
    fired += dead[i];
    if (!needed) continue;
    for_each_operand(one, [&](const Operand& operand) { live[operand.value] = true; });
    for (const auto& update : one.updates) live[update.before] = true;
  }
  erase_instructions(program, dead);
  return fired;
}

int64_t renew_values(Program& program, const PassOptions&) {
  std::vector<bool> made(program.values.size(), false);
  int64_t fired = 0;
  for (Instruction& one : program.instructions) {
    const bool pure = one.op && !one.kernel && one.op->writes.empty() && one.updates.size() == 1 &&
                      one.results.size() == 1 && !one.results[0].list;
    if (pure && made[one.updates[0].before]) {
      const Operand& result = one.results[0].operands[0];
      if (result.value == one.updates[0].after && covers(result.geometry, program.values[result.value].nbytes)) {
        program.values[result.value].geometry = result.geometry;
        one.updates.clear();
        ++fired;
      }
    }
    for_each_result(one, [&](const Operand& operand) { made[operand.value] = true; });
    for (const auto& update : one.updates) made[update.after] = made[update.before];
  }
  return fired;
}

int64_t merge_common(Program& program, const PassOptions&) {
  std::unordered_map<std::string, std::vector<size_t>> known;
  std::vector<bool> gone(program.instructions.size(), false);
  int64_t fired = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& one = program.instructions[i];
    if (!is_pure(one)) continue;
    auto& alike = known[key_of(one)];
    for (const size_t other : alike) {
      gone[i] = same(one, program.instructions[other]) && replace_results(program, one, program.instructions[other]);
      if (gone[i]) break;
    }
    if (!gone[i]) alike.push_back(i);
    fired += gone[i];
  }
  erase_instructions(program, gone);
  return fired;
}

int64_t merge_casts(Program& program, const PassOptions&) {
  std::unordered_map<std::string, size_t> known;
  std::vector<bool> gone(program.instructions.size(), false);
  int64_t fired = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& one = program.instructions[i];
    if (!is_pure(one)) continue;
    const std::string key = cast_key_of(program, one);
    if (key.empty()) continue;
    const auto [first, fresh] = known.emplace(key, i);
    if (fresh) continue;
    const Instruction& other = program.instructions[first->second];
    if (!same_kind_of_tensor(program, one, other)) continue;
    const Uses uses(program);
    const ValueId old = one.results[0].operands[0].value;
    gone[i] = !uses.outputs[old] && replace_value(program, uses, old, other.results[0].operands[0].value);
    fired += gone[i];
  }
  erase_instructions(program, gone);
  return fired;
}

}  // namespace bellows::graph::detail
