#include "bellows/export/program_template.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "bellows/graph/program/program_edit.h"

namespace bellows::export_detail {

namespace {

using graph::Geometry;
using graph::Instruction;
using graph::Program;

/// Replaces a number by another one.
using Change = std::function<int64_t(int64_t)>;

void change_geometry(Geometry& geometry, const Change& change) {
  for (int64_t& size : geometry.sizes) size = change(size);
  for (int64_t& stride : geometry.strides) stride = change(stride);
  geometry.offset = change(geometry.offset);
}

void change_constant(c10::IValue& constant, const Change& change) {
  if (constant.isInt()) {
    constant = change(constant.toInt());
  } else if (constant.isIntList()) {
    std::vector<int64_t> numbers = constant.toIntVector();
    for (int64_t& number : numbers) number = change(number);
    constant = numbers;
  }
}

void change_instruction(Instruction& one, const Change& change) {
  for (Instruction::Argument& argument : one.arguments) {
    for (graph::Operand& operand : argument.operands) change_geometry(operand.geometry, change);
    if (!argument.is_tensors()) change_constant(argument.constant, change);
  }
  for (Instruction::Result& result : one.results) {
    for (graph::Operand& operand : result.operands) change_geometry(operand.geometry, change);
  }
}

void change_values(Program& program, const Change& change) {
  for (Program::ValueFacts& value : program.values) {
    change_geometry(value.geometry, change);
    value.nbytes = static_cast<size_t>(change(static_cast<int64_t>(value.nbytes)));
  }
}

std::vector<int64_t> numbers_of_values(Program program) {
  std::vector<int64_t> numbers;
  change_values(program, [&](int64_t number) { return numbers.push_back(number), number; });
  return numbers;
}

std::vector<int64_t> numbers_of(Instruction one) {
  std::vector<int64_t> numbers;
  change_instruction(one, [&](int64_t number) { return numbers.push_back(number), number; });
  return numbers;
}

std::string place_of(const Instruction& one, size_t index) {
  return c10::str("operator ", one.op ? one.op->name : one.kind, " (number ", index + 1, " of the recording)");
}

/// Expects constants other than integers to be equal.
void expect_same_constants(const std::vector<RecordedCall>& calls) {
  const auto same = [](const c10::IValue& a, const c10::IValue& b) {
    if (a.isInt() || a.isIntList()) return b.isInt() == a.isInt() && b.isIntList() == a.isIntList();
    if (a.isDouble()) return b.isDouble() && a.toDouble() == b.toDouble();
    return c10::str(a) == c10::str(b);
  };
  const Program& first = calls.front().program;
  for (const RecordedCall& call : calls) {
    for (size_t i = 0; i < first.instructions.size(); ++i) {
      const auto &expected = first.instructions[i].arguments, &found = call.program.instructions[i].arguments;
      for (size_t a = 0; a < expected.size(); ++a) {
        TORCH_CHECK_VALUE(expected[a].is_tensors() || same(expected[a].constant, found[a].constant),
                          "export: ", place_of(first.instructions[i], i), " has an argument that is ",
                          expected[a].constant, " for the first sizes and ", found[a].constant,
                          " for other sizes. Compute it with tensor operators, or make this axis fixed.");
      }
    }
  }
}

/// The same number in all recordings.
std::vector<Varied> joined(const std::vector<std::vector<int64_t>>& recordings) {
  std::vector<Varied> numbers(recordings.front().size());
  for (const auto& recording : recordings) {
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i].values.push_back(recording[i]);
  }
  return numbers;
}

void change_results(std::vector<graph::Operand>& results, const Change& change) {
  for (graph::Operand& result : results) change_geometry(result.geometry, change);
}

std::vector<int64_t> numbers_of(std::vector<graph::Operand> results) {
  std::vector<int64_t> numbers;
  change_results(results, [&](int64_t number) { return numbers.push_back(number), number; });
  return numbers;
}

/// The numbers of all values, then those of each instruction, and then those of the results, in all recordings.
std::vector<std::vector<Varied>> all_numbers(const std::vector<RecordedCall>& calls) {
  std::vector<std::vector<Varied>> all;
  const auto add = [&](const std::function<std::vector<int64_t>(const RecordedCall&)>& part) {
    std::vector<std::vector<int64_t>> recordings;
    recordings.reserve(calls.size());
    for (const RecordedCall& call : calls) recordings.push_back(part(call));
    all.push_back(joined(recordings));
  };
  add([](const RecordedCall& call) { return numbers_of_values(call.program); });
  for (size_t i = 0; i < calls.front().program.instructions.size(); ++i)
    add([i](const RecordedCall& call) { return numbers_of(call.program.instructions[i]); });
  add([](const RecordedCall& call) { return numbers_of(call.results); });
  return all;
}

void add_sizes(const std::vector<RecordedCall>& calls, SizeFormulas& formulas) {
  const Program& first = calls.front().program;
  for (size_t v = 0; v < first.values.size(); ++v) {
    for (size_t dim = 0; dim < first.values[v].geometry.sizes.size(); ++dim) {
      Varied size;
      for (const RecordedCall& call : calls) size.values.push_back(call.program.values[v].geometry.sizes[dim]);
      formulas.add_size(size);
    }
  }
}

/// Makes all results that the program computes its outputs.
void add_outputs(ProgramTemplate::Instance& of) {
  for (const graph::Operand& result : of.results) {
    const auto is_result = [&](const Program::Output& output) { return output.value == result.value; };
    auto& outputs = of.program.outputs;
    const auto& inputs = of.program.inputs;
    if (std::find(inputs.begin(), inputs.end(), result.value) == inputs.end() &&
        std::none_of(outputs.begin(), outputs.end(), is_result))
      outputs.push_back({.value = result.value});
  }
}

}  // namespace

ProgramTemplate::ProgramTemplate(Instance base, std::vector<std::string> symbols, std::vector<Slot> slots)
    : base_(std::move(base)), symbols_(std::move(symbols)), slots_(std::move(slots)) {}

ProgramTemplate ProgramTemplate::of(const std::vector<RecordedCall>& calls, const std::vector<Symbol>& symbols) {
  expect_same_constants(calls);
  SizeFormulas formulas(symbols);
  add_sizes(calls, formulas);
  const Program& first = calls.front().program;
  std::vector<Slot> slots;
  size_t number = 0, part = 0;
  for (const std::vector<Varied>& numbers : all_numbers(calls)) {
    for (const Varied& one : numbers) {
      if (!one.constant()) {
        const bool in_operator = part > 0 && part <= first.instructions.size();
        auto formula = formulas.of(one);
        TORCH_CHECK_VALUE(
            formula, "export: ", in_operator ? place_of(first.instructions[part - 1], part - 1) : "a tensor",
            " has a size that is ", at::IntArrayRef(one.values),
            " in the recordings. It is not a product of sums and quotients of the dynamic sizes. Make one "
            "of these axes fixed.");
        slots.push_back({.number = number, .formula = std::move(*formula)});
      }
      ++number;
    }
    ++part;
  }
  std::vector<std::string> names;
  names.reserve(symbols.size());
  for (const Symbol& symbol : symbols) names.push_back(symbol.name);
  Instance base{.program = first, .results = calls.front().results};
  add_outputs(base);
  return {std::move(base), std::move(names), std::move(slots)};
}

ProgramTemplate::Instance ProgramTemplate::instantiate(std::span<const int64_t> sizes) const {
  TORCH_CHECK_VALUE(sizes.size() == symbols_.size(), "expected ", symbols_.size(), " sizes, found ", sizes.size(), ".");
  Instance made = base_;
  size_t number = 0;
  auto next = slots_.begin();
  const Change change = [&](int64_t old) {
    if (next == slots_.end() || next->number != number++) return old;
    const int64_t value = (next++)->formula.value(sizes);
    TORCH_CHECK_VALUE(value >= 0 || old < 0, "the sizes ", at::IntArrayRef(sizes.data(), sizes.size()),
                      " are too small: a size in the program would be ", value, ".");
    return value;
  };
  change_values(made.program, change);
  for (Instruction& one : made.program.instructions) change_instruction(one, change);
  change_results(made.results, change);
  return made;
}

}  // namespace bellows::export_detail
