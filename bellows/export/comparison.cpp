#include "bellows/export/comparison.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "bellows/compile/result_distance.h"

namespace bellows::export_detail {

namespace {

/// Dims of an input that have a symbol's size.
std::vector<int64_t> dims_with(const Recordings& recordings, size_t input, const Symbol& symbol) {
  std::vector<int64_t> dims;
  const at::Tensor& first = recordings.inputs[0][input];
  for (int64_t dim = 0; first.defined() && dim < first.dim(); ++dim) {
    Varied size;
    for (const auto& inputs : recordings.inputs) size.values.push_back(inputs[input].size(dim));
    if (!size.constant() && size == symbol.sizes) dims.push_back(dim);
  }
  return dims;
}

}  // namespace

double accepted_difference(c10::ScalarType dtype, double scale, bool low_precision) {
  if (!at::isFloatingType(dtype) && !at::isComplexType(dtype)) return 0;
  const bool coarse = low_precision || dtype == at::kBFloat16 || dtype == at::kHalf;
  return (coarse ? 0.05 : 1e-3) * std::max(scale, 1e-3);
}

void Comparison::check_result(size_t index, const at::Tensor& expected, const at::Tensor& found,
                              const std::vector<at::Tensor>& inputs) {
  const std::string& name = recordings_.output_names[index];
  TORCH_CHECK_VALUE(found.sizes() == expected.sizes() && found.scalar_type() == expected.scalar_type(), caller_,
                    ": output \"", name, "\" of the ", exported_, " has sizes ", found.sizes(), " and dtype ",
                    found.scalar_type(), ", but the model returns ", expected.sizes(), " and ", expected.scalar_type(),
                    ". The sizes of this axis cannot vary.");
  const auto distance = compile_detail::Distance::between(expected, found);
  const double scale = std::max(distance.scale, 1e-3);
  const double limit = accepted_difference(expected.scalar_type(), distance.scale, low_precision_);
  TORCH_CHECK_VALUE(distance.largest <= limit, caller_, ": output \"", name, "\" of the ", exported_,
                    " differs from the model's by ", distance.largest, " for inputs of sizes ", inputs[0].sizes(),
                    " (accepted: ", limit, "). Either the model's results depend on more than its inputs, or the ",
                    exported_, " computes differently.");
  difference_ = std::max(difference_, distance.largest / scale);
}

void Comparison::check(const Exported& run, const std::vector<at::Tensor>& inputs,
                       const std::vector<at::Tensor>& expected) {
  const std::vector<at::Tensor> found = run(inputs);
  TORCH_CHECK_VALUE(found.size() == expected.size(), caller_, ": the ", exported_, " returns ", found.size(),
                    " tensors, but the model returns ", expected.size(), ".");
  for (size_t i = 0; i < expected.size(); ++i) check_result(i, expected[i], found[i], inputs);
  ++calls_;
}

void Comparison::check_recorded(const Exported& run, size_t recording) {
  check(run, recordings_.inputs[recording], recordings_.calls[recording].result_tensors);
}

void Comparison::check_small(const Exported& run) {
  for (const Symbol& symbol : recordings_.symbols) {
    std::vector<at::Tensor> small = recordings_.inputs[0], expected;
    for (size_t input = 0; input < small.size(); ++input) {
      for (const int64_t dim : dims_with(recordings_, input, symbol))
        small[input] = small[input].narrow(dim, 0, 1).contiguous();
    }
    try {
      const c10::NoGradGuard no_gradients;
      expected = function_(small);
    } catch (const std::exception&) {
      continue;
    }
    check(run, small, expected);
  }
}

void Comparison::check_all(const Exported& exported) {
  const auto run = [&](const std::vector<at::Tensor>& inputs) { return exported(given_inputs(inputs)); };
  for (size_t i = 0; i < recordings_.calls.size(); ++i) check_recorded(run, i);
  check_small(run);
}

std::vector<at::Tensor> given_inputs(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> result;
  std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(result),
               [](const at::Tensor& x) { return x.defined(); });
  return result;
}

bool is_quantized(const Recordings& recordings) {
  const auto& instructions = recordings.calls[0].program.instructions;
  return std::any_of(instructions.begin(), instructions.end(),
                     [](const graph::Instruction& one) { return one.op->name.starts_with("bellows::quantize"); });
}

}  // namespace bellows::export_detail
