#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "bellows/graph/passes/passes.h"
#include "bellows/graph/program/argument_value.h"
#include "bellows/graph/program/constant_store.h"
#include "bellows/graph/program/program_edit.h"
#include "bellows/tap/op_tap.h"

namespace bellows::graph::detail {
namespace {

constexpr size_t small_elements = 4096;

class ConstantFolder {
 public:
  explicit ConstantFolder(Program& program) : program_(program) {
    for (const auto& constant : program.constants) known_.emplace(constant.value, constant.tensor);
  }

  int64_t run() {
    if (known_.empty()) return 0;
    std::vector<bool> gone(program_.instructions.size(), false);
    int64_t fired = 0;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      gone[i] = fold(program_.instructions[i]);
      fired += gone[i];
    }
    erase_instructions(program_, gone);
    return fired;
  }

 private:
  bool depends_on_constants_only(const Instruction& one) const {
    bool any = false, all = true;
    size_t read = 0, made = 0;
    for (const auto& argument : one.arguments) all = all && argument.number < 0;
    for_each_operand(one, [&](const Operand& operand) {
      any = true;
      all = all && known_.contains(operand.value);
      read += elements(operand);
    });
    for_each_result(one, [&](const Operand& result) { made += elements(result); });
    // Results that are larger than the inputs cost more memory than they save time
    return any && all && made <= std::max(read, small_elements);
  }

  size_t elements(const Operand& operand) const {
    return program_.values[operand.value].nbytes / operand.geometry.dtype.itemsize();
  }

  at::Tensor seen(const Operand& operand) const {
    return operand.value == no_value ? at::Tensor() : operand.geometry.over(known_.at(operand.value).storage());
  }

  c10::IValue value_of(const Instruction::Argument& argument) const {
    return argument_value(argument, [&](const Operand& operand) { return seen(operand); });
  }

  std::vector<at::Tensor> computed(const Instruction& one) const {
    tap::Stack stack;
    for (const auto& argument : one.arguments) stack.push_back(value_of(argument));
    const Program::State& state = program_.states[one.state];
    const DispatchStateScope scope(state.dispatch_state, state.float32_precision);
    one.op->handle->callBoxed(stack);
    std::vector<at::Tensor> made;
    for (size_t i = 0; i < one.results.size(); ++i)
      made.push_back(one.results[i].operands[0].value == no_value ? at::Tensor() : stack[i].toTensor());
    return made;
  }

  /// Takes the only result from the store of constants if it is there.
  std::vector<at::Tensor> results_of(const Instruction& one) const {
    const Operand& result = one.results[0].operands[0];
    if (one.results.size() != 1 || result.value == no_value) return computed(one);
    std::string what = one.op->name;
    std::vector<at::Tensor> from;
    for (const auto& argument : one.arguments) {
      what += argument.is_tensors() ? c10::str(" ", argument.operands.size()) : c10::str(" ", argument.constant);
      for (const Operand& operand : argument.operands) from.push_back(seen(operand));
    }
    return stored_or_computed(what, from, {&result.geometry, 1}, [&] { return computed(one); });
  }

  bool fold(const Instruction& one) {
    if (!is_pure(one) || !depends_on_constants_only(one)) return false;
    for (const auto& result : one.results) {
      if (result.list) return false;
    }
    const std::vector<at::Tensor> made = results_of(one);
    for (size_t i = 0; i < one.results.size(); ++i) {
      const Operand& result = one.results[i].operands[0];
      if (result.value != no_value && !same_places(Geometry::of(made[i]), result.geometry)) return false;
    }
    for (size_t i = 0; i < made.size(); ++i) {
      if (one.results[i].operands[0].value == no_value) continue;
      program_.constants.push_back({.value = one.results[i].operands[0].value, .tensor = made[i].detach()});
      known_.emplace(program_.constants.back().value, program_.constants.back().tensor);
    }
    return true;
  }

  Program& program_;
  std::unordered_map<ValueId, at::Tensor> known_;
};

}  // namespace

int64_t fold_constants(Program& program, const PassOptions&) {
  return ConstantFolder(program).run();
}

}  // namespace bellows::graph::detail
