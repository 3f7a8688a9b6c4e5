#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "bellows/kernels/optimizer_step.h"
#include "bellows/optim/optimizers.h"

namespace bellows::optim {

struct FusedStep {
  bool maximize = false;
  double grad_factor = 1;  ///< for the CPU: sign and 1 / scale in one
  bool* begun = nullptr;   ///< set when weights start to change: all that a failed step can take back comes before
  // For a device, where the host does not wait; undefined if not given.
  at::Tensor lr, grad_scale, found_inf;
  /// For the CPU, where steps are deferred: what the host has not read. `skipped` is how many steps found_inf has skipped that the rules'
  /// step numbers count.
  struct Late {
    at::Tensor grad_scale, found_inf, skipped;
  } late = {};
};

/// FusedStep::late when the step runs, as an operator is given it.
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

/// One parameter as a fused kernel sees it.
template <class Rule>
struct FusedTensor {
  at::Tensor param, grad, master;
  std::array<at::Tensor, 3> state{};
  Rule rule{};
  at::Tensor step = {};  ///< on a device, for rules that count: steps done before this one
  kernels::LowBit low_bit = kernels::LowBit::none;
  std::array<at::Tensor, 2> scale = {};
  std::optional<uint64_t> rounding_seed = {};  ///< the parameter is rounded at random
};

/// Carries out one step of all tensors, which may differ in device, type and layout.
void run_fused(std::vector<FusedTensor<kernels::SgdRule>> tensors, const FusedStep& step);
void run_fused(std::vector<FusedTensor<kernels::AdamRule>> tensors, const FusedStep& step);
void run_fused(std::vector<FusedTensor<kernels::RmspropRule>> tensors, const FusedStep& step);
void run_fused(std::vector<FusedTensor<kernels::AdagradRule>> tensors, const FusedStep& step);
void run_fused(std::vector<FusedTensor<kernels::LionRule>> tensors, const FusedStep& step);

/// Whether element i of both lies at the same place; dimensions of one element do not count.
bool same_layout(const at::Tensor& a, const at::Tensor& b);

/// Types that the fused kernels take.
bool is_fusable(at::ScalarType type);

/// What the sources of the single optimizers may do with the class they share.
struct OptimizerInternals {
  LibtorchOptimizer& optimizer;

  /// The parameter's state, made by `fresh()` if there is none.
  template <class State, class Fresh>
  State& state(const at::Tensor& p, Fresh fresh) const {
    auto& slot = optimizer.state()[p.unsafeGetTensorImpl()];
    if (!slot) slot = std::make_unique<State>(fresh());
    return static_cast<State&>(*slot);
  }
  /// Until forget_incomplete_step(), step() refuses: who fails half way in a change leaves no optimizer to go on with.
  void begin_change() const { optimizer.incomplete_ = true; }
  at::Tensor master_of(const at::Tensor& p) const { return optimizer.master_of(p); }
  /// A state tensor in the parameter's layout, in the type that state has.
  at::Tensor new_state(const at::Tensor& p, double value = 0) const;
  /// For the fused step: what belongs to a parameter, and its count of steps if its device keeps one.
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

/// Throws unless `value` and its scales, which were read from a file, can be a moment of p's state.
/// Params: scale – undefined where the file has none
void check_low_bit_state(const LibtorchOptimizer& optimizer, const at::Tensor& p, const at::Tensor& value,
                         const at::Tensor& scale, const std::string& name);

// --- lists of tensors, for the foreach implementations

using TensorList = std::vector<at::Tensor>;

TensorList gradients_of(const TensorList& parameters);

/// Calls `step(parameters)` with those that have a gradient: on an accelerator all of one device and type at once; on
/// the CPU in runs whose parameters, gradients and state stay in the cache from one operator to the next.
void for_each_list(const TensorList& parameters, const std::function<void(const TensorList&)>& step);

// --- checks of options

/// Throws unless low <= value < high, which NaN never is.
void check_option(const char* optimizer, const char* option, double value, double low = 0,
                  double high = std::numeric_limits<double>::infinity());

}  // namespace bellows::optim
