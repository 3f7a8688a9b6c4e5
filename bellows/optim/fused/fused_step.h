#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::optim {

using TensorList = std::vector<at::Tensor>;

/// Arguments of a fused step in addition to a group's options.
struct FusedStep {
  bool maximize = false;
  double grad_factor = 1;  ///< CPU only: 1 / scale, negative if `maximize` is set
  /// The step sets this flag to true when it starts to change weights. If the step fails before that, it can be undone.
  bool* begun = nullptr;
  // On accelerators, these numbers are passed as device tensors, so that the host does not have to wait until they are
  // computed. A tensor is undefined if the caller passes no number.
  at::Tensor lr, grad_scale, found_inf;
  /// For deferred steps on the CPU: values that the host has not read yet. `skipped` is the number of earlier steps
  /// that were skipped because found_inf was set. The step number in FusedTensor::rule includes these steps.
  struct Late {
    at::Tensor grad_scale, found_inf, skipped;
  } late = {};
};

/// The values of FusedStep::late when the step runs. The operators that are registered with libtorch for fused steps
/// receive these values as optional tensors.
struct LateNumbers {
  using Given = std::optional<at::Tensor>;
  LateNumbers(const Given& grad_scale, const Given& found_inf, const Given& steps_skipped)
      : skips(number(found_inf, 0) > 0), scale(number(grad_scale, 1)), skipped(number(steps_skipped, 0)) {}

  bool skips;
  double scale, skipped;

 private:
  static double number(const Given& given, double otherwise) { return given ? given->item<double>() : otherwise; }
};
inline LateNumbers::Given if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? LateNumbers::Given(tensor) : std::nullopt;
}

/// Arguments of a fused kernel for one parameter.
template <class Rule>
struct FusedTensor {
  at::Tensor param, grad, master;
  std::array<at::Tensor, 3> state{};
  Rule rule{};
  at::Tensor step = {};  ///< on accelerators, for rules with a step number: number of earlier steps
  kernels::LowBit low_bit = kernels::LowBit::none;
  std::array<at::Tensor, 2> scale = {};
  std::optional<uint64_t> rounding_seed = {};  ///< if set, the parameter is rounded stochastically
};

/// Runs one step for all tensors. They can differ in device, dtype and layout.
void run_fused(std::vector<FusedTensor<kernels::SgdRule>> tensors, const FusedStep& step);
void run_fused(std::vector<FusedTensor<kernels::AdamRule>> tensors, const FusedStep& step);
void run_fused(std::vector<FusedTensor<kernels::RmspropRule>> tensors, const FusedStep& step);
void run_fused(std::vector<FusedTensor<kernels::AdagradRule>> tensors, const FusedStep& step);
void run_fused(std::vector<FusedTensor<kernels::LionRule>> tensors, const FusedStep& step);

/// Returns whether element i of `a` and element i of `b` are at the same offset in memory, for all i. Dims of size 1
/// are ignored.
bool same_layout(const at::Tensor& a, const at::Tensor& b);

/// Returns whether the fused kernels support the dtype.
bool is_fusable(at::ScalarType type);

}  // namespace bellows::optim
