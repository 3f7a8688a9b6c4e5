#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bellows/optim/fused/fused_step.h"
#include "bellows/optim/optimizers.h"

namespace bellows::optim {

/// Gives the source files of the optimizers access to LibtorchOptimizer.
struct OptimizerInternals {
  LibtorchOptimizer& optimizer;

  /// Returns the parameter's state. If it does not exist, `fresh()` creates it.
  template <class State, class Fresh>
  State& state(const at::Tensor& p, Fresh fresh) const {
    auto& slot = optimizer.state()[p.unsafeGetTensorImpl()];
    if (!slot) slot = std::make_unique<State>(fresh());
    return static_cast<State&>(*slot);
  }
  /// Call this function before a change that leaves the optimizer inconsistent if it fails halfway. step() then throws
  /// until forget_incomplete_step() is called.
  void begin_change() const { optimizer.incomplete_ = true; }
  at::Tensor master_of(const at::Tensor& p) const { return optimizer.master_of(p); }
  /// Creates a state tensor with the parameter's layout and state dtype, filled with `value`.
  at::Tensor new_state(const at::Tensor& p, double value = 0) const;
  /// Returns the arguments of the fused step for one parameter.
  template <class Rule>
  FusedTensor<Rule> fused(const at::Tensor& p, const Rule& rule) const {
    FusedTensor<Rule> t{.param = p, .grad = p.grad(), .master = optimizer.master_of(p), .rule = rule};
    add_low_bit(p, rule.states(), t.low_bit, t.scale);
    t.rounding_seed = next_rounding_seed(t);
    return t;
  }
  at::Tensor device_step(const at::Tensor& p, int64_t steps_before) const {
    return p.is_cuda() ? optimizer.device_step(p, steps_before) : at::Tensor();
  }

 private:
  void add_low_bit(const at::Tensor& p, int moments, kernels::LowBit& bits, std::array<at::Tensor, 2>& scale) const;
  template <class Rule>
  std::optional<uint64_t> next_rounding_seed(const FusedTensor<Rule>& t) const {
    const bool rounds = optimizer.rounds_at_random() && t.param.scalar_type() == at::kBFloat16 && !t.master.defined();
    return rounds ? std::optional(next_rounding_seed()) : std::nullopt;
  }
  uint64_t next_rounding_seed() const;
};

/// Throws: c10::ValueError if `value` and `scale`, which were read from a file, do not form a valid moment in the state
///         of p
/// Params: scale – undefined if the file does not contain one
void check_low_bit_state(const LibtorchOptimizer& optimizer, const at::Tensor& p, const at::Tensor& value,
                         const at::Tensor& scale, const std::string& name);

// --- lists of tensors, for the foreach implementations

TensorList gradients_of(const TensorList& parameters);

/// Calls `step(parameters)` with the parameters that have a gradient. On an accelerator, each call gets all parameters
/// of one device and dtype. On the CPU, each call gets as many parameters as fit in the cache together with their
/// gradients and state. They then stay in the cache from one operator to the next.
void for_each_list(const TensorList& parameters, const std::function<void(const TensorList&)>& step);

// --- options

/// Returns the option with this name; null if the class of the options does not have it.
double* find_number(torch::optim::OptimizerOptions& options, std::string_view name);

/// Throws: c10::ValueError unless low <= value < high; NaN always throws
void check_option(const char* optimizer, const char* option, double value, double low = 0,
                  double high = std::numeric_limits<double>::infinity());

}  // namespace bellows::optim
