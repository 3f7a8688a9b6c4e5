#pragma once

#include <gtest/gtest.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "bellows/compile/codegen/codegen.h"
#include "bellows/compile/jit/generated_kernel.h"
#include "bellows/graph/passes/expression.h"

namespace bellows::compile_detail::testing {

/// An operator called plainly, and what is generated for it.
struct OperatorCase {
  std::string name;
  std::vector<c10::IValue> arguments;
  double rtol = 1e-5, atol = 1e-6;

  graph::Instruction instruction{};
  std::vector<at::Tensor> operands{}, expected{}, results{};
  std::vector<c10::IValue> numbers{};
  KernelCode code{};
  bool generated = false;
};

inline graph::Operand operand_of(const at::Tensor& tensor, graph::ValueId value) {
  if (!tensor.defined()) return {};
  return {.value = value, .geometry = graph::Geometry::of(tensor)};
}

/// The same tensor over a copy of its memory.
inline at::Tensor copied(const at::Tensor& tensor) {
  const size_t bytes = tensor.storage().nbytes();
  const at::Tensor memory = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  if (bytes) std::memcpy(memory.data_ptr(), tensor.storage().data(), bytes);
  return graph::Geometry::of(tensor).over(memory.storage());
}

inline void add_argument(OperatorCase& one, const c10::IValue& given, graph::OperatorFacts::Kind kind,
                         graph::ValueId& value) {
  graph::Instruction::Argument argument{.kind = kind, .constant = given};
  if (argument.is_tensors()) {
    const at::Tensor tensor = given.isTensor() ? given.toTensor() : at::Tensor();
    argument.operands.push_back(operand_of(tensor, value));
    argument.constant = {};
    one.operands.push_back(tensor.defined() ? copied(tensor) : tensor);
    value += tensor.defined();
  }
  one.instruction.arguments.push_back(std::move(argument));
}

/// Calls the operator, and writes down how.
inline void prepare(OperatorCase& one) {
  const size_t dot = one.name.find('.');
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(
      one.name.substr(0, dot).c_str(), dot == std::string::npos ? "" : one.name.substr(dot + 1).c_str());
  const auto& facts = graph::operator_facts(handle);
  one.instruction.op = &facts;
  graph::ValueId value = 0;
  torch::jit::Stack stack;
  for (size_t i = 0; i < facts.arguments.size(); ++i) {
    const auto& schema = handle.schema().arguments()[i];
    stack.push_back(i < one.arguments.size() ? one.arguments[i] : schema.default_value().value_or(c10::IValue()));
    add_argument(one, stack.back(), facts.arguments[i], value);
  }
  for (const int written : facts.writes) {
    const auto& argument = one.instruction.arguments[written];
    if (argument.operands[0].value < 0) continue;
    one.instruction.updates.push_back({.before = argument.operands[0].value, .after = value++});
  }
  handle.callBoxed(stack);
  for (const c10::IValue& result : stack) {
    const at::Tensor tensor = result.toTensor();
    one.expected.push_back(tensor);
    one.results.push_back(tensor.defined() ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options())
                                           : tensor);
    one.instruction.results.push_back({.operands = {operand_of(tensor, value++)}});
  }
}

/// Runs the generated kernel, and compares all that it leaves.
inline void expect_close(OperatorCase& one, const GeneratedKernel& kernel) {
  std::vector<void*> operands, results;
  const auto address = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.storage().mutable_data() : nullptr;
  };
  for (const at::Tensor& tensor : one.operands) operands.push_back(address(tensor));
  for (const at::Tensor& tensor : one.results) results.push_back(address(tensor));
  std::vector<char> scratch(kernel.scratch_bytes() + 64);
  kernel.run(operands, results, one.numbers, scratch.data() + 64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
  const auto compare = [&](const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
    if (!expected.defined() || expected.numel() == 0) return;
    EXPECT_TRUE(at::allclose(got.to(at::kDouble), expected.to(at::kDouble), one.rtol, one.atol, true))
        << one.name << ", " << what << ": " << graph::Geometry::of(expected).text() << " differs by "
        << (got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>() << "\n"
        << graph::expression_of(one.instruction)->to_text();
  };
  for (size_t i = 0; i < one.expected.size(); ++i) compare(one.results[i], one.expected[i], c10::str("result ", i));
  size_t operand = 0;
  for (size_t i = 0; i < one.instruction.arguments.size(); ++i) {
    if (!one.instruction.arguments[i].is_tensors()) continue;
    const c10::IValue given = i < one.arguments.size() ? one.arguments[i] : c10::IValue();
    if (given.isTensor()) compare(one.operands[operand], given.toTensor(), c10::str("argument ", i));
    ++operand;
  }
}

/// Generates, compiles as one source, runs and compares.
inline void expect_generated(std::vector<OperatorCase>& cases) {
  std::vector<const KernelCode*> codes;
  for (OperatorCase& one : cases) {
    prepare(one);
    const auto expression = graph::expression_of(one.instruction);
    if (!expression) {
      const bool empty = one.expected[0].numel() == 0 || one.operands[0].numel() == 0;
      EXPECT_TRUE(empty) << one.name << " has no expression";
      continue;
    }
    auto code = generate(*expression);
    ASSERT_TRUE(code) << one.name << "\n" << expression->to_text();
    one.code = std::move(*code);
    one.generated = true;
  }
  for (const OperatorCase& one : cases) {
    if (one.generated) codes.push_back(&one.code);
  }
  KernelCache cache;
  ASSERT_TRUE(cache.can_compile());
  const auto library = cache.load(source_of(codes));
  for (OperatorCase& one : cases) {
    if (one.generated) expect_close(one, GeneratedKernel(one.name, one.code, library));
  }
}

}  // namespace bellows::compile_detail::testing
