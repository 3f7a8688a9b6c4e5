#include "bellows/graph/program/program_builder.h"

#include <algorithm>

#include "bellows/graph/program/program_edit.h"

namespace bellows::graph::detail {
namespace {

class ProgramBuilder {
 public:
  explicit ProgramBuilder(std::span<const RecordedOperator* const> operators) {
    program_.instructions.reserve(operators.size());
    program_.values.reserve(2 * operators.size());
    now_.resize(operators.empty() ? 0 : operators.back()->buffers_after);
    for (const RecordedOperator* recorded : operators) add(*recorded);
  }

  BuiltProgram finish(const std::function<bool(BufferId)>& alive) && {
    BuiltProgram built;
    for (const BufferId buffer : order_) {
      const Now& now = now_[buffer];
      const bool needed = now.input < 0 ? alive(buffer) : now.written;
      if (!needed) continue;
      program_.outputs.push_back({.value = now.value, .input = now.input});
      built.outputs.push_back(buffer);
    }
    built.inputs = std::move(inputs_);
    built.program = std::move(program_);
    return built;
  }

 private:
  /// The state of a buffer at the current position in the program.
  struct Now {
    ValueId value = no_value;
    int input = -1;
    bool written = false;
  };

  void add(const RecordedOperator& recorded) {
    Instruction& made = program_.instructions.emplace_back(recorded.instruction);
    made.state = state_of(recorded.state);
    for (Instruction::Argument& argument : made.arguments) {
      if (argument.number < 0) continue;
      argument.number = static_cast<int>(program_.numbers.size());
      program_.numbers.push_back(argument.constant);
    }
    for_each_operand(made, [&](Operand& operand) { renumber(operand); });
    for (const BufferId buffer : recorded.written()) {
      const ValueId before = now_[buffer].value;
      made.updates.push_back({.before = before, .after = new_value(buffer, program_.values[before])});
      now_[buffer].written = true;
    }
    const RecordedOperator::Result* facts = recorded.results.data();
    for (Instruction::Result& result : made.results) {
      for (Operand& operand : result.operands) renumber(operand, *facts++);
    }
  }

  /// Operators that do not depend on the precision run in any state, because a change of state takes as long as a small
  /// operator.
  int state_of(const Program::State& wanted) {
    const auto serves = [&](const Program::State& state) {
      return state.dispatch_state == wanted.dispatch_state &&
             (state.float32_precision < 0 || wanted.float32_precision < 0 ||
              state.float32_precision == wanted.float32_precision);
    };
    const auto found = std::find_if(program_.states.rbegin(), program_.states.rend(), serves);
    if (found != program_.states.rend()) {
      if (found->float32_precision < 0) found->float32_precision = wanted.float32_precision;
      return static_cast<int>(program_.states.rend() - found) - 1;
    }
    program_.states.push_back(wanted);
    return static_cast<int>(program_.states.size()) - 1;
  }

  ValueId new_value(BufferId buffer, Program::ValueFacts facts) {
    const auto value = static_cast<ValueId>(program_.values.size());
    program_.values.push_back(std::move(facts));
    now_[buffer].value = value;
    return value;
  }

  void renumber(Operand& result, const RecordedOperator::Result& facts) {
    if (facts.made) {
      order_.push_back(result.value);
      new_value(result.value, {.geometry = result.geometry, .nbytes = facts.nbytes});
    }
    renumber(result);
  }

  /// Replaces a buffer with its current value. A buffer that no operator made is an input; the program sees only as much
  /// of it as its operands.
  void renumber(Operand& operand) {
    if (operand.value < 0) return;
    Now& now = now_[operand.value];
    if (now.value == no_value) {
      now.input = static_cast<int>(inputs_.size());
      order_.push_back(operand.value);
      inputs_.push_back(operand.value);
      program_.inputs.push_back(new_value(operand.value, {.geometry = operand.geometry}));
    }
    if (now.input >= 0) {
      size_t& known = program_.values[program_.inputs[now.input]].nbytes;
      known = std::max(known, operand.geometry.reach());
      program_.values[now.value].nbytes = known;
    }
    operand.value = now.value;
  }

  Program program_;
  std::vector<Now> now_;  ///< for each buffer
  std::vector<BufferId> order_, inputs_;
};

}  // namespace

BuiltProgram build_program(std::span<const RecordedOperator* const> operators,
                           const std::function<bool(BufferId)>& alive) {
  return ProgramBuilder(operators).finish(alive);
}

}  // namespace bellows::graph::detail
