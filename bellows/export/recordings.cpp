#include "bellows/export/recordings.h"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/graph/program/program_edit.h"

namespace bellows::export_detail {

namespace {

using graph::Instruction;
using graph::Operand;

/// Returns the tensor with another size of one axis, whose elements repeat.
at::Tensor resized(const at::Tensor& tensor, size_t axis, int64_t size, bool reversed) {
  const int64_t given = tensor.size(static_cast<int64_t>(axis));
  at::Tensor index = at::arange(size, at::TensorOptions(at::kLong).device(tensor.device())).remainder(given);
  if (reversed) index = index.neg().add(given - 1);
  return tensor.index_select(static_cast<int64_t>(axis), index);
}

/// Returns the example with other sizes of some axes.
std::vector<at::Tensor> inputs_with(const std::vector<at::Tensor>& inputs, const std::vector<VariedAxis>& axes,
                                    const std::vector<int64_t>& sizes, bool reversed) {
  std::vector<at::Tensor> result = inputs;
  for (size_t i = 0; i < axes.size(); ++i) {
    for (const auto& [input, axis] : axes[i].places) result[input] = resized(result[input], axis, sizes[i], reversed);
  }
  return result;
}

std::string sizes_text(const std::vector<VariedAxis>& axes, const std::vector<int64_t>& sizes) {
  std::string text;
  for (size_t i = 0; i < axes.size(); ++i)
    text += (text.empty() ? "" : ", ") + axes[i].name + " = " + std::to_string(sizes[i]);
  return text.empty() ? "other values of the inputs" : text;
}

/// Other sizes near the size of the example. A size of 1 is not recorded, because it hides the structure of views.
std::vector<std::vector<int64_t>> candidates(int64_t size) {
  const int64_t first = std::max<int64_t>(size, 2);
  std::vector<std::vector<int64_t>> result{{first, first + 1, first + 3}};
  if (first > 5) result.push_back({first, first - 1, first - 3});
  result.push_back({first, 2 * first, 3 * first});
  if (first >= 32 && first % 4 == 0) result.push_back({first, first / 2, first / 2 + first / 4});
  return result;
}

bool same_constants(const c10::IValue& a, const c10::IValue& b) {
  const auto number = [](const c10::IValue& value) { return value.isInt() || value.isIntList() || value.isDouble(); };
  if (number(a) || number(b)) return a.tagKind() == b.tagKind();
  if (a.isNone() || a.isBool() || a.isString()) return a == b;
  return true;
}

bool same_operands(const std::vector<Operand>& a, const std::vector<Operand>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Operand& x, const Operand& y) {
    return x.value == y.value && x.geometry.dtype == y.geometry.dtype &&
           x.geometry.sizes.size() == y.geometry.sizes.size();
  });
}

bool same_structure(const Instruction& a, const Instruction& b) {
  if (a.op != b.op || a.arguments.size() != b.arguments.size() || a.results.size() != b.results.size()) return false;
  for (size_t i = 0; i < a.arguments.size(); ++i) {
    const auto &x = a.arguments[i], &y = b.arguments[i];
    if (x.kind != y.kind || !same_operands(x.operands, y.operands)) return false;
    if (!x.is_tensors() && !same_constants(x.constant, y.constant)) return false;
  }
  for (size_t i = 0; i < a.results.size(); ++i) {
    if (!same_operands(a.results[i].operands, b.results[i].operands)) return false;
  }
  return true;
}

/// Throws if two recordings do not have the same operators on the same values.
void check_alike(const RecordedCall& first, const RecordedCall& other, const std::string& sizes) {
  const auto &a = first.program.instructions, &b = other.program.instructions;
  const auto differs = [&](size_t i) { return i >= a.size() || i >= b.size() || !same_structure(a[i], b[i]); };
  size_t i = 0;
  while (i < std::max(a.size(), b.size()) && !differs(i)) ++i;
  if (i == a.size() && i == b.size()) {
    TORCH_CHECK_VALUE(same_operands(first.results, other.results), "export: for ", sizes,
                      ", the function returns other results than for the example inputs.");
    return;
  }
  const auto text = [&](const RecordedCall& call) {
    return i < call.program.instructions.size()
               ? graph::detail::instruction_text(call.program, call.program.instructions[i])
               : std::string("no further operator");
  };
  TORCH_CHECK_VALUE(
      false, "export: for ", sizes,
      ", the function runs other operators than for the example inputs. "
      "Operator ",
      i + 1, " is\n  ", text(other), "\ninstead of\n  ", text(first),
      "\nAn exported graph cannot branch. Do not let this axis vary, choose sizes that take the same branch "
      "(`sizes`), or remove the branch.");
}

class SizeRecorder {
 public:
  SizeRecorder(const Forward& function, const std::vector<at::Tensor>& inputs, std::span<const Named> named)
      : function_(function), inputs_(inputs), named_(named) {}

  /// Returns nothing if the function does not accept the sizes.
  std::optional<Recordings> record(const std::vector<VariedAxis>& axes) {
    Recordings result;
    std::vector<int64_t> sizes, last;
    sizes.reserve(axes.size());
    last.reserve(axes.size());
    for (const VariedAxis& axis : axes) sizes.push_back(axis.sizes[0]);
    if (!add(result, axes, sizes, false)) return {};
    for (size_t i = 0; i < axes.size(); ++i) {
      std::vector<int64_t> other = sizes;
      other[i] = axes[i].sizes[1];
      if (!add(result, axes, other, false)) return {};
    }
    for (const VariedAxis& axis : axes) last.push_back(axis.sizes[2]);
    if (!add(result, axes, last, true)) return {};
    for (size_t i = 0; i < axes.size(); ++i) {
      const auto& [input, axis] = axes[i].places[0];
      Varied all;
      for (const auto& tensors : result.inputs) all.values.push_back(tensors[input].size(static_cast<int64_t>(axis)));
      result.symbols.push_back({.name = axes[i].name, .sizes = all});
      result.places.push_back(axes[i].places[0]);
    }
    return result;
  }
  const std::string& failure() const { return failure_; }

 private:
  bool add(Recordings& result, const std::vector<VariedAxis>& axes, const std::vector<int64_t>& sizes, bool reversed) {
    result.inputs.push_back(inputs_with(inputs_, axes, sizes, reversed));
    try {
      result.calls.push_back(record_call(function_, result.inputs.back(), named_, false));
      check_alike(result.calls[0], result.calls.back(), sizes_text(axes, sizes));
    } catch (const std::exception& error) {
      // The first recording has the sizes of the example, except that a size of 1 became 2.
      if (result.calls.empty() && result.inputs.back().size() == inputs_.size() && axes.empty()) throw;
      if (failure_.empty()) failure_ = "For " + sizes_text(axes, sizes) + ": " + user_message(error);
      return false;
    }
    return true;
  }

  const Forward& function_;
  const std::vector<at::Tensor>& inputs_;
  std::span<const Named> named_;
  std::string failure_;
};

}  // namespace

Recordings record_sizes(const Forward& function, const std::vector<at::Tensor>& inputs, std::vector<VariedAxis> axes,
                        std::span<const Named> named) {
  SizeRecorder recorder(function, inputs, named);
  size_t attempts = 1;
  std::vector<std::vector<std::vector<int64_t>>> choices;
  for (const VariedAxis& axis : axes) {
    const auto& [input, dim] = axis.places[0];
    choices.push_back(axis.sizes.empty() ? candidates(inputs[input].size(static_cast<int64_t>(dim)))
                                         : std::vector<std::vector<int64_t>>{axis.sizes});
    attempts = std::max(attempts, choices.back().size());
  }
  std::optional<Recordings> recorded;
  for (size_t attempt = 0; attempt < attempts && !recorded; ++attempt) {
    for (size_t i = 0; i < axes.size(); ++i) axes[i].sizes = choices[i][std::min(attempt, choices[i].size() - 1)];
    recorded = recorder.record(axes);
  }
  TORCH_CHECK_VALUE(
      recorded, "export: the function could not be recorded with varying sizes. ", recorder.failure(),
      "\nSet `sizes` to three sizes of each axis that the function accepts, or `dynamic_axes` to the axes "
      "that may vary.");
  return std::move(*recorded);
}

}  // namespace bellows::export_detail
