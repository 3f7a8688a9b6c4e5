#include "bellows/graph/program/program_builder.h"

#include <algorithm>
#include <unordered_map>

namespace bellows::graph::detail {
namespace {

class ProgramBuilder {
 public:
  void add(const Node& node) {
    Instruction made{.op = node.op, .state = state_of(node), .default_dtype = node.dispatch_state.default_dtype};
    made.arguments.reserve(node.arguments.size());
    for (const Argument& argument : node.arguments) made.arguments.push_back(argument_of(argument));
    for (const BufferId buffer : node.written()) {
      const ValueId before = now_.at(buffer).value;
      made.updates.push_back({.before = before, .after = new_value(buffer, program_.values[before])});
      now_[buffer].written = true;
    }
    made.results.reserve(node.results.size());
    for (const Result& result : node.results) made.results.push_back(result_of(result));
    program_.instructions.push_back(std::move(made));
  }

  BuiltProgram finish(const std::function<bool(BufferId)>& alive) && {
    BuiltProgram built;
    for (const BufferId buffer : order_) {
      const Now& now = now_.at(buffer);
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

  /// Operators that do not depend on the precision run in any state, because a change of state takes as long as a small
  /// operator.
  int state_of(const Node& node) {
    const auto serves = [&](const Program::State& state) {
      return state.dispatch_state == node.dispatch_state &&
             (state.float32_precision < 0 || node.float32_precision < 0 ||
              state.float32_precision == node.float32_precision);
    };
    const auto found = std::find_if(program_.states.rbegin(), program_.states.rend(), serves);
    if (found != program_.states.rend()) {
      if (found->float32_precision < 0) found->float32_precision = node.float32_precision;
      return static_cast<int>(program_.states.rend() - found) - 1;
    }
    program_.states.push_back({.dispatch_state = node.dispatch_state, .float32_precision = node.float32_precision});
    return static_cast<int>(program_.states.size()) - 1;
  }

  ValueId new_value(BufferId buffer, Program::ValueFacts facts) {
    const auto value = static_cast<ValueId>(program_.values.size());
    program_.values.push_back(std::move(facts));
    now_[buffer].value = value;
    return value;
  }

  /// Returns: the current value of a buffer. A buffer that no operator made is an input; the program sees only as much
  ///          of it as its operands.
  Operand operand_of(const Value& seen) {
    if (seen.buffer < 0) return {};
    if (!now_.contains(seen.buffer)) {
      now_[seen.buffer].input = static_cast<int>(inputs_.size());
      order_.push_back(seen.buffer);
      inputs_.push_back(seen.buffer);
      program_.inputs.push_back(new_value(seen.buffer, {.geometry = seen.geometry}));
    }
    const Now& now = now_.at(seen.buffer);
    if (now.input >= 0) {
      size_t& known = program_.values[program_.inputs[now.input]].nbytes;
      known = std::max(known, seen.geometry.reach());
      program_.values[now.value].nbytes = known;
    }
    return {.value = now.value, .geometry = seen.geometry};
  }

  Instruction::Argument argument_of(const Argument& argument) {
    Instruction::Argument made{.kind = argument.kind, .constant = argument.constant};
    made.operands.reserve(argument.tensors.size());
    for (const Value& tensor : argument.tensors) made.operands.push_back(operand_of(tensor));
    if (argument.lifted) {
      made.number = static_cast<int>(program_.numbers.size());
      program_.numbers.push_back(argument.constant);
    }
    return made;
  }

  Instruction::Result result_of(const Result& result) {
    Instruction::Result made{.list = result.list};
    made.operands.reserve(result.outputs.size());
    for (const Output& output : result.outputs) {
      if (output.made) {
        order_.push_back(output.value.buffer);
        new_value(output.value.buffer, {.geometry = output.value.geometry, .nbytes = output.nbytes});
      }
      made.operands.push_back(operand_of(output.value));
    }
    return made;
  }

  Program program_;
  std::unordered_map<BufferId, Now> now_;
  std::vector<BufferId> order_, inputs_;
};

}  // namespace

BuiltProgram build_program(std::span<const Node* const> nodes, const std::function<bool(BufferId)>& alive) {
  ProgramBuilder builder;
  for (const Node* node : nodes) builder.add(*node);
  return std::move(builder).finish(alive);
}

}  // namespace bellows::graph::detail
