#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "bellows/graph/execution/schedule.h"
#include "bellows/graph/passes/expression.h"
#include "bellows/graph/passes/functionalize.h"
#include "bellows/graph/passes/passes.h"

namespace bellows::graph::detail {
namespace {

/// Reorders a program's instructions: an instruction that frees more memory than it takes runs as early as possible.
/// Otherwise, the order stays.
class MemoryOrder {
 public:
  explicit MemoryOrder(const Program& program)
      : program_(program),
        schedule_(program),
        waits_for_(program.instructions.size()),
        users_(program.instructions.size()),
        readers_left_(program.values.size()) {
    for (size_t i = 0; i < waits_for_.size(); ++i) {
      const int at = static_cast<int>(i);
      const std::set<int> needs(schedule_.needs(at).begin(), schedule_.needs(at).end());
      waits_for_[i] = needs.size();
      for (const int need : needs) users_[need].push_back(at);
      if (needs.empty()) ready_.insert(at);
    }
    for (size_t value = 0; value < readers_left_.size(); ++value)
      readers_left_[value] = schedule_.uses().readers[value].size();
  }

  std::vector<int> run() {
    std::vector<int> order;
    order.reserve(waits_for_.size());
    while (!ready_.empty()) {
      const auto frees = std::find_if(ready_.begin(), ready_.end(), [&](int at) { return growth(at) < 0; });
      order.push_back(frees == ready_.end() ? *ready_.begin() : *frees);
      take(order.back());
    }
    return order;
  }

 private:
  /// Returns: the values that an instruction reads, each once
  std::set<ValueId> read_by(int at) const {
    std::set<ValueId> all;
    for_each_operand(program_.instructions[at], [&](const Operand& operand) { all.insert(operand.value); });
    return all;
  }

  /// Returns: the growth of the needed memory by this instruction, in bytes
  int64_t growth(int at) const {
    const Uses& uses = schedule_.uses();
    int64_t bytes = 0;
    std::set<ValueId> made;
    for_each_result(program_.instructions[at], [&](const Operand& operand) {
      const bool fresh = uses.maker[operand.value] == at && !uses.update[operand.value];
      if (fresh && made.insert(operand.value).second) bytes += bytes_of(operand.value);
    });
    for (const ValueId value : read_by(at)) {
      if (uses.maker[value] >= 0 && uses.is_free(value) && readers_left_[value] == 1) bytes -= bytes_of(value);
    }
    return bytes;
  }
  int64_t bytes_of(ValueId value) const { return static_cast<int64_t>(program_.values[value].nbytes); }

  void take(int at) {
    ready_.erase(at);
    for (const ValueId value : read_by(at)) --readers_left_[value];
    for (const int user : users_[at]) {
      if (--waits_for_[user] == 0) ready_.insert(user);
    }
  }

  const Program& program_;
  const Schedule schedule_;
  std::vector<size_t> waits_for_;
  std::vector<std::vector<int>> users_;
  std::vector<size_t> readers_left_;  ///< for each value
  std::set<int> ready_;
};

/// Lets kernels overwrite operands that no later instruction reads.
class OperandReuser {
 public:
  OperandReuser(Program& program, const PassOptions& options)
      : program_(program), options_(options), uses_(program), own_(program.values.size()) {}

  int64_t run() {
    int64_t fired = 0;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      Instruction& one = program_.instructions[i];
      const bool planned = is_planned(one);
      for_each_result(one, [&](const Operand& made) {
        if (uses_.maker[made.value] == static_cast<int>(i)) own_[made.value] = planned;
      });
      for (const auto& update : one.updates) own_[update.after] = own_[update.before];
      if (!one.kernel && (one.kind == "pointwise" || one.kind == "reduction")) fired += reuse(one, static_cast<int>(i));
    }
    return fired;
  }

 private:
  /// True if its results will be in the arena. Other operators allocate their results, which are freed as early as
  /// possible instead.
  static bool is_planned(const Instruction& one) {
    return one.kernel || one.group || out_form_of(one) || expression_of(one);
  }

  /// True if the value is in the arena and not needed after this instruction.
  bool dies(ValueId value, int at) const {
    return value != no_value && own_[value] && uses_.outputs[value] == 0 && uses_.overwriter[value] < 0 &&
           uses_.readers[value].back() == at;
  }

  int64_t reuse(Instruction& one, int at) {
    int64_t fired = 0;
    for (size_t result = 0; result < one.results.size();) {
      const ValueId made = one.results[result].operands[0].value;
      bool done = false;
      for (size_t i = 0; i < one.group->inputs.size() && !done && uses_.outputs[made] == 0; ++i) {
        const ValueId read = one.arguments[i].operands[0].value;
        const bool taken = std::any_of(one.updates.begin(), one.updates.end(),
                                       [&](const auto& update) { return update.before == read; });
        done = !taken && dies(read, at) && program_.values[read].nbytes == program_.values[made].nbytes &&
               write_over(one, result, i);
      }
      fired += done;
      result += !done;
    }
    return fired;
  }

  /// Returns: false if correct code would not be possible
  bool write_over(Instruction& one, size_t result, size_t input) {
    auto group = std::make_shared<Program>(*one.group);
    size_t count = 0;
    for (auto& output : group->outputs) {
      if (output.input < 0 && count++ == result) {
        output.input = static_cast<int>(input);
        break;
      }
    }
    const auto expression = expression_of(*group);
    if (!expression || (options_.can_generate && !options_.can_generate(*expression))) return false;
    one.updates.push_back(
        {.before = one.arguments[input].operands[0].value, .after = one.results[result].operands[0].value});
    one.results.erase(one.results.begin() + static_cast<std::ptrdiff_t>(result));
    one.group = std::move(group);
    return true;
  }

  Program& program_;
  const PassOptions& options_;
  const Uses uses_;
  std::vector<bool> own_;  ///< for each value
};

}  // namespace

int64_t order_for_memory(Program& program, const PassOptions&) {
  const std::vector<int> order = MemoryOrder(program).run();
  int64_t fired = 0;
  std::vector<Instruction> all;
  all.reserve(order.size());
  for (const int at : order) {
    fired += at > static_cast<int>(all.size());
    all.push_back(std::move(program.instructions[at]));
  }
  program.instructions = std::move(all);
  return fired;
}

int64_t reuse_operands(Program& program, const PassOptions& options) {
  return OperandReuser(program, options).run();
}

}  // namespace bellows::graph::detail
