#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "bellows/optim/fused/fused_step.h"
#include "bellows/optim/optimizers.h"

namespace bellows::optim {

/// Access to LibtorchOptimizer for the sources of the individual optimizers.
struct OptimizerInternals {
  LibtorchOptimizer& optimizer;

  /// The parameter's state. If there is none, it is created by `fresh()`.
  template <class State, class Fresh>
  State& state(const at::Tensor& p, Fresh fresh) const {
    auto& slot = optimizer.state()[p.unsafeGetTensorImpl()];
    if (!slot) slot = std::make_unique<State>(fresh());
    return static_cast<State&>(*slot);
  }
  /// From here on, step() throws until forget_incomplete_step() is called: after a change that fails halfway, the
  /// optimizer is in an inconsistent state.
  void begin_change() const { optimizer.incomplete_ = true; }
  at::Tensor master_of(const at::Tensor& p) const { return optimizer.master_of(p); }
  /// A state tensor with the parameter's layout and the dtype of its state.
  at::Tensor new_state(const at::Tensor& p, double value = 0) const;
  /// Arguments of the fused step for one parameter.
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

/// Throws: c10::ValueError if `value` and its scales, which were read from a file, cannot be a moment in p's state
/// Params: scale – undefined if the file has none
void check_low_bit_state(const LibtorchOptimizer& optimizer, const at::Tensor& p, const at::Tensor& value,
                         const at::Tensor& scale, const std::string& name);

// --- lists of tensors, for the foreach implementations

TensorList gradients_of(const TensorList& parameters);

/// Calls `step(parameters)` with the parameters that have a gradient. On an accelerator, a call gets all parameters of
/// one device and dtype. On the CPU, it gets as many as fit in the cache with their gradients and state, so that they
/// stay there from one operator to the next.
void for_each_list(const TensorList& parameters, const std::function<void(const TensorList&)>& step);

// --- checks of options

/// Throws: c10::ValueError unless low <= value < high; NaN always throws
void check_option(const char* optimizer, const char* option, double value, double low = 0,
                  double high = std::numeric_limits<double>::infinity());

}  // namespace bellows::optim
