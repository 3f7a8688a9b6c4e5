#include "bellows/graph/recording/match.h"

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstring>

#include "bellows/tap/pending_storage.h"

namespace bellows::graph::detail {
namespace {

using Kind = OperatorFacts::Kind;

bool same_bits(double a, double b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

template <class List>
bool same_items(const List& a, const List& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_constant(a[i], b[i])) return false;
  }
  return true;
}

bool same_kind(const c10::IValue& a, const c10::IValue& b) {
  return a.isInt() == b.isInt() && a.isDouble() == b.isDouble() && a.isBool() == b.isBool() &&
         a.isNone() == b.isNone() && a.isString() == b.isString() && a.isDevice() == b.isDevice() &&
         a.isGenerator() == b.isGenerator() && a.isComplexDouble() == b.isComplexDouble() && a.isList() == b.isList();
}

/// Compares the tensors of an argument with the recorded ones. Returns false at the first difference.
bool same_tensors(const Instruction::Argument& argument, const c10::IValue& value, const BufferId*& buffer) {
  if (value.isNone() || (argument.kind == Kind::tensor) != value.isTensor()) return false;
  size_t at = 0;
  bool same = true;
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    const BufferId got = *buffer++;
    if (!same) return;
    same = at < argument.operands.size();
    if (!same) return;
    const Operand& expected = argument.operands[at++];
    same = got == expected.value && (got < 0 || expected.geometry.fits(tensor));
  });
  return same && at == argument.operands.size();
}

bool same_state(const Program::State& state, const Arrival& arrival) {
  return state.dispatch_state == arrival.dispatch_state &&
         (state.float32_precision < 0 || state.float32_precision == float32_precision());
}

}  // namespace

Arrival::Arrival(const tap::OpCall& call, const OperatorFacts& facts, tap::Stack& stack, BufferTable& table)
    : op(call), arguments(call.arguments(stack)), dispatch_state(DispatchState::capture()) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (facts.arguments[i] >= Kind::number) continue;
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      const size_t known = table.size();
      buffers.push_back(table.of(tensor));
      tensors.push_back(&tensor);
      if (table.size() > known && tap::is_pending(*tensor.storage().unsafeGetStorageImpl())) foreign = true;
    });
  }
}

Agreement compare(const RecordedOperator& recorded, const Arrival& arrival) {
  if (!(*recorded.op().handle == arrival.op.handle()) || !same_state(recorded.state, arrival)) return Agreement::none;
  const auto& arguments = recorded.instruction.arguments;
  const BufferId* buffer = arrival.buffers.data();
  Agreement result = Agreement::all;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Instruction::Argument& argument = arguments[i];
    const c10::IValue& value = arrival.arguments[i];
    if (argument.is_tensors()) {
      if (!same_tensors(argument, value, buffer)) return Agreement::none;
    } else if (recorded.when != When::later) {
      if (value.isTensor() || value.isTensorList()) return Agreement::none;
    } else if (argument.kind == Kind::number) {
      if (!same_number_kind(argument.constant, value)) return Agreement::none;
      if (argument.number < 0 && !same_constant(argument.constant, value)) result = Agreement::tensors;
    } else if (!same_constant(argument.constant, value)) {
      return Agreement::none;
    }
  }
  return result;
}

int lift_numbers(RecordedOperator& recorded, const Arrival& arrival) {
  int fresh = 0;
  auto& arguments = recorded.instruction.arguments;
  for (size_t i = 0; i < arguments.size(); ++i) {
    Instruction::Argument& argument = arguments[i];
    if (argument.kind != Kind::number || argument.number >= 0 || same_constant(argument.constant, arrival.arguments[i]))
      continue;
    argument.number = 0;
    ++fresh;
  }
  return fresh;
}

void add_lifted_numbers(const Instruction& instruction, const Arrival& arrival, std::vector<c10::IValue>& numbers) {
  for (size_t i = 0; i < instruction.arguments.size(); ++i) {
    if (instruction.arguments[i].number >= 0) numbers.push_back(arrival.arguments[i]);
  }
}

std::string difference(const RecordedOperator& recorded, const Arrival& arrival) {
  if (!(*recorded.op().handle == arrival.op.handle())) return "instead of " + recorded.op().name;
  if (std::string state = arrival.dispatch_state.difference(recorded.state.dispatch_state); !state.empty())
    return state;
  if (!same_state(recorded.state, arrival)) return "a different precision of fp32 matmuls";
  const BufferId* buffer = arrival.buffers.data();
  for (size_t i = 0; i < recorded.instruction.arguments.size(); ++i) {
    const Instruction::Argument& argument = recorded.instruction.arguments[i];
    const c10::IValue& value = arrival.arguments[i];
    const std::string where = c10::str("argument ", i, ": ");
    if (!argument.is_tensors()) {
      if (value.isTensor() || value.isTensorList()) return where + "a tensor instead of none";
      if (!same_constant(argument.constant, value)) return c10::str(where, value, " instead of ", argument.constant);
      continue;
    }
    const BufferId first = argument.operands.size() == 1 ? *buffer : no_buffer;
    if (same_tensors(argument, value, buffer)) continue;
    if (!value.isTensor() || argument.operands.size() != 1) return where + "different tensors in the list";
    const std::string geometry = first >= 0 && argument.operands[0].value >= 0
                                     ? argument.operands[0].geometry.difference(value.toTensor())
                                     : "defined instead of undefined, or undefined instead of defined";
    return where + (geometry.empty() ? "a different tensor" : geometry);
  }
  return "results with different sizes, or results of different tensors";
}

bool comparable(const c10::IValue& value) {
  if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (!comparable(item)) return false;
    }
    return true;
  }
  return value.isNone() || value.isInt() || value.isDouble() || value.isBool() || value.isString() ||
         value.isDevice() || value.isComplexDouble() || value.isGenerator();
}

bool same_constant(const c10::IValue& a, const c10::IValue& b) {
  if (a.isList() && b.isList()) return same_items(a.toListRef(), b.toListRef());
  if (!same_kind(a, b)) return false;
  if (a.isNone()) return true;
  if (a.isInt()) return a.toInt() == b.toInt();
  if (a.isDouble()) return same_bits(a.toDouble(), b.toDouble());
  if (a.isBool()) return a.toBool() == b.toBool();
  if (a.isString()) return a.toStringRef() == b.toStringRef();
  if (a.isDevice()) return a.toDevice() == b.toDevice();
  if (a.isGenerator()) return a.toGenerator() == b.toGenerator();
  if (!a.isComplexDouble()) return false;
  const auto x = a.toComplexDouble(), y = b.toComplexDouble();
  return same_bits(x.real(), y.real()) && same_bits(x.imag(), y.imag());
}

bool same_number_kind(const c10::IValue& a, const c10::IValue& b) {
  if (a.isList() && b.isList()) {
    const auto x = a.toListRef(), y = b.toListRef();
    if (x.size() != y.size()) return false;
    for (size_t i = 0; i < x.size(); ++i) {
      if (!same_number_kind(x[i], y[i])) return false;
    }
    return true;
  }
  return same_kind(a, b);
}

bool results_fit(const Instruction& instruction, std::span<const c10::IValue> results, BufferTable& buffers) {
  for (size_t i = 0; i < instruction.results.size(); ++i) {
    const Instruction::Result& expected = instruction.results[i];
    if ((results[i].isTensor() || results[i].isTensorList()) != expected.is_tensors()) return false;
    if (!expected.is_tensors()) continue;
    if (results[i].isList() != expected.list) return false;
    size_t at = 0;
    bool fit = true;
    for_each_tensor(results[i], [&](const at::Tensor& tensor) {
      const BufferId got = buffers.of(tensor);
      fit = fit && at < expected.operands.size() && got == expected.operands[at].value &&
            (got < 0 || expected.operands[at].geometry.fits(tensor));
      ++at;
    });
    if (!fit || at != expected.operands.size()) return false;
  }
  return true;
}

}  // namespace bellows::graph::detail
