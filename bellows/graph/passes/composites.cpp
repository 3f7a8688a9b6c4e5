#include <unordered_map>
#include <variant>

#include "bellows/graph/passes/passes.h"
#include "bellows/graph/program/program_edit.h"

namespace bellows::graph::detail {
namespace {

/// The operator that a composite calls. Each argument is the index of an argument of the composite, or a constant.
struct Parts {
  std::string_view name;
  std::vector<std::variant<int, c10::IValue>> arguments;
  bool (*applies)(const Instruction&) = [](const Instruction&) { return true; };
};

c10::IValue nothing() {
  return {};
}

c10::IValue flag(bool value) {
  return value;
}

c10::IValue list_of(const std::vector<int64_t>& values) {
  return c10::List<int64_t>(at::IntArrayRef(values));
}

bool is_batch(const Instruction& one) {
  const auto dims = [&](int argument) { return one.arguments[argument].operands[0].geometry.sizes.size(); };
  return dims(0) == dims(1);
}

bool is_global(const Instruction& one) {
  const auto& size = one.arguments[1];
  return size.number < 0 && size.constant.toIntVector() == std::vector<int64_t>{1, 1};
}

bool has_no_dtype(const Instruction& one) {
  return one.arguments[2].constant.isNone();
}

/// Covers only the calls that libtorch's own kernels make for floating-point tensors on the CPU.
const std::unordered_map<std::string_view, Parts>& all_parts() {
  static const auto* const all = new std::unordered_map<std::string_view, Parts>{
      {"aten::_convolution", {"aten::convolution", {0, 1, 2, 3, 4, 5, 6, 7, 8}}},  // in traces of TorchScript
      {"aten::conv1d", {"aten::convolution", {0, 1, 2, 3, 4, 5, flag(false), list_of({0}), 6}, is_batch}},
      {"aten::conv2d", {"aten::convolution", {0, 1, 2, 3, 4, 5, flag(false), list_of({0, 0}), 6}, is_batch}},
      {"aten::conv3d", {"aten::convolution", {0, 1, 2, 3, 4, 5, flag(false), list_of({0, 0, 0}), 6}, is_batch}},
      {"aten::conv_transpose2d.input", {"aten::convolution", {0, 1, 2, 3, 4, 7, flag(true), 5, 6}, is_batch}},
      {"aten::max_pool2d", {"aten::max_pool2d_with_indices", {0, 1, 2, 3, 4, 5}}},
      {"aten::adaptive_avg_pool2d", {"aten::mean.dim", {0, list_of({-1, -2}), flag(true), nothing()}, is_global}},
      {"aten::softmax.int", {"aten::_softmax", {0, 1, flag(false)}, has_no_dtype}},
      {"aten::log_softmax.int", {"aten::_log_softmax", {0, 1, flag(false)}, has_no_dtype}},
      {"aten::to.dtype", {"aten::_to_copy", {0, 1, nothing(), nothing(), nothing(), 2, 4}}},
      {"aten::to.dtype_layout", {"aten::_to_copy", {0, 1, 2, 3, 4, 5, 7}}}};
  return *all;
}

bool say(Instruction& one) {
  if (!one.op || !is_pure(one) || one.results.size() != 1) return false;
  const auto found = all_parts().find(one.op->name);
  if (found == all_parts().end() || !one.results[0].operands[0].geometry.device.is_cpu()) return false;
  const Parts& parts = found->second;
  const OperatorFacts* const op = operator_named(parts.name);
  if (!op || op->arguments.size() != parts.arguments.size() || !parts.applies(one)) return false;
  std::vector<Instruction::Argument> arguments;
  arguments.reserve(parts.arguments.size());
  for (const auto& part : parts.arguments) {
    if (const int* const own = std::get_if<int>(&part))
      arguments.push_back(one.arguments[*own]);
    else
      arguments.push_back({.kind = op->arguments[arguments.size()], .constant = std::get<c10::IValue>(part)});
  }
  one.op = op;
  one.arguments = std::move(arguments);
  // Nothing reads results that the composite does not return
  one.results.resize(op->results, {.operands = {Operand{}}});
  return true;
}

/// A matmul of rows (in any number of dims) with one matrix. libtorch also combines the rows into one matrix.
bool say_matmul(Program& program, Instruction& one) {
  if (!calls(one, "aten::matmul") || !is_pure(one)) return false;
  Geometry& rows = one.arguments[0].operands[0].geometry;
  Operand& result = one.results[0].operands[0];
  const size_t dims = rows.sizes.size();
  if (dims < 2 || one.arguments[1].operands[0].geometry.sizes.size() != 2 || !result.geometry.device.is_cpu() ||
      !is_row_major(result.geometry))
    return false;
  int64_t count = rows.sizes[dims - 2];
  for (size_t i = dims - 2; i-- > 0; count *= rows.sizes[i]) {
    if (rows.strides[i] != rows.strides[i + 1] * rows.sizes[i + 1]) return false;
  }
  one.op = operator_named("aten::mm");
  rows.sizes = {count, rows.sizes[dims - 1]};
  rows.strides = {rows.strides[dims - 2], rows.strides[dims - 1]};
  const int64_t width = result.geometry.sizes.back();
  result.geometry.sizes = {count, width};
  result.geometry.strides = {width, 1};
  program.values[result.value].geometry = result.geometry;
  return true;
}

}  // namespace

int64_t say_composites(Program& program, const PassOptions&) {
  int64_t fired = 0;
  for (Instruction& one : program.instructions) fired += say(one) || say_matmul(program, one);
  return fired;
}

}  // namespace bellows::graph::detail
