#pragma once

#include <gtest/gtest.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "bellows/compile/codegen/codegen.h"
#include "bellows/compile/jit/generated_kernel.h"
#include "bellows/compile/jit/kernel_cache.h"
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
    one.results.push_back(
        tensor.defined() ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).zero_() : tensor);
    one.instruction.results.push_back({.operands = {operand_of(tensor, value++)}});
  }
}

/// The memory that a kernel leaves.
struct KernelRun {
  std::vector<at::Tensor> operands{}, results{};
};

inline std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> made;
  for (const at::Tensor& tensor : tensors) made.push_back(tensor.defined() ? copied(tensor) : tensor);
  return made;
}

inline KernelRun run_on_copies(const OperatorCase& one, const GeneratedKernel& kernel) {
  KernelRun made{copies(one.operands), copies(one.results)};
  std::vector<void*> operands, results;
  const auto address = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.storage().mutable_data() : nullptr;
  };
  for (const at::Tensor& tensor : made.operands) operands.push_back(address(tensor));
  for (const at::Tensor& tensor : made.results) results.push_back(address(tensor));
  std::vector<char> scratch(kernel.scratch_bytes() + 64);
  kernel.run(operands, results, one.numbers, scratch.data() + 64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
  return made;
}

inline void expect_same_bits(const OperatorCase& one, const KernelRun& a, const KernelRun& b) {
  const auto compare = [&](const at::Tensor& x, const at::Tensor& y) {
    if (!x.defined()) return;
    EXPECT_EQ(std::memcmp(x.storage().data(), y.storage().data(), x.storage().nbytes()), 0)
        << one.name << " depends on whether sizes are literals: " << graph::Geometry::of(x).text();
  };
  for (size_t i = 0; i < a.operands.size(); ++i) compare(a.operands[i], b.operands[i]);
  for (size_t i = 0; i < a.results.size(); ++i) compare(a.results[i], b.results[i]);
}

/// Compares everything that a kernel leaves with what the operator left.
inline void expect_close(const OperatorCase& one, const KernelRun& run) {
  const auto compare = [&](const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
    if (!expected.defined() || expected.numel() == 0) return;
    EXPECT_TRUE(at::allclose(got.to(at::kDouble), expected.to(at::kDouble), one.rtol, one.atol, true))
        << one.name << ", " << what << ": " << graph::Geometry::of(expected).text() << " differs by "
        << (got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>() << "\n"
        << graph::expression_of(one.instruction)->to_text();
  };
  for (size_t i = 0; i < one.expected.size(); ++i) compare(run.results[i], one.expected[i], c10::str("result ", i));
  size_t operand = 0;
  for (size_t i = 0; i < one.instruction.arguments.size(); ++i) {
    if (!one.instruction.arguments[i].is_tensors()) continue;
    const c10::IValue given = i < one.arguments.size() ? one.arguments[i] : c10::IValue();
    if (given.isTensor()) compare(run.operands[operand], given.toTensor(), c10::str("argument ", i));
    ++operand;
  }
}

/// The same code, but all sizes and constants are arguments.
inline KernelCode with_arguments(KernelCode code) {
  for (auto& function : code.functions)
    function.read_numbers(std::vector<bool>(function.marked.sizes.size(), true),
                          std::vector<bool>(function.marked.constants.size(), true));
  return code;
}

/// Generates code with literals and with arguments, compiles it as one source, runs and compares both.
inline void expect_generated(std::vector<OperatorCase>& cases) {
  std::vector<KernelCode> flexible;
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
  std::map<std::string, const KernelCode::Function*> functions;
  for (const OperatorCase& one : cases) flexible.push_back(with_arguments(one.code));
  for (size_t i = 0; i < cases.size(); ++i) {
    for (const KernelCode* code : {&cases[i].code, &flexible[i]}) {
      for (const auto& function : code->functions) functions.emplace(function.symbol, &function);
    }
  }
  std::vector<const KernelCode::Function*> source;
  for (const auto& [symbol, function] : functions) source.push_back(function);
  KernelCache cache;
  ASSERT_TRUE(cache.can_compile());
  const auto library = cache.load(source_of(source));
  Libraries libraries;
  for (const auto& [symbol, function] : functions) libraries.emplace(symbol, library);
  for (size_t i = 0; i < cases.size(); ++i) {
    if (!cases[i].generated) continue;
    const KernelRun run = run_on_copies(cases[i], GeneratedKernel(cases[i].name, cases[i].code, libraries));
    expect_close(cases[i], run);
    expect_same_bits(cases[i], run, run_on_copies(cases[i], GeneratedKernel(cases[i].name, flexible[i], libraries)));
  }
}

}  // namespace bellows::compile_detail::testing
