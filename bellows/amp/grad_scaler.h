#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <string_view>
#include <unordered_map>
#include <vector>

#include "bellows/core/model.h"

namespace bellows {
class ScaledStep;
}

namespace bellows::amp {

/// Params: init_scale – initial scale; scaling by a power of two is exact
///         growth_factor – the scale is multiplied by this factor after `growth_interval` successive steps with finite
///         gradients
///         backoff_factor – the scale is multiplied by this factor after a step in which a gradient was infinite or NaN
///         enabled – false: scale() returns its argument, step() calls the optimizer's step(), and all other functions
///         do nothing
///         allow_fp16 – true: fp16 gradients are unscaled, too. Set it only for models whose weights are all fp16
///         (policy O3), because gradients that underflow during unscaling are lost
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool enabled = true;
  bool allow_fp16 = false;
};

/// Prevents small fp16 gradients from becoming zero. The scaler multiplies the loss by a scale before backward, and
/// divides the gradients by the same scale afterwards. It skips steps whose gradients overflowed, and adapts the scale
/// automatically.
/// ```
/// scaler.scale(loss).backward();
/// scaler.unscale_(optimizer);          // only if you inspect or clip the true gradients
/// scaler.step(optimizer);              // for each optimizer
/// scaler.update();                     // once
/// ```
/// You can use it with one or several optimizers of any kind, on several devices, and with sparse gradients. Models in
/// bf16 need no scaling, because bf16 has the range of fp32.
/// Numerics: scales, skipped steps and parameters equal PyTorch's over 200 steps with injected infinities, two
///           optimizers, and dense and sparse gradients (tests/amp/grad_scaler_golden_test.cpp)
/// Cost:     one pass over the gradients. step() waits for the device once, or not at all if the optimizer is a
///           ScaledStep. The other functions wait only if their comments say so.
/// Threads:  not thread-safe
/// Ref:      torch.amp.GradScaler
class GradScaler {
 public:
  /// Throws: c10::ValueError if the scale or a factor is not a finite number, growth_factor ≤ 1, backoff_factor is
  ///         outside (0, 1), init_scale ≤ 0, or growth_interval < 1
  explicit GradScaler(const GradScalerOptions& options = {});

  /// Returns `output` times the scale. The first call creates the scale on the device of `output`.
  /// Throws: c10::ValueError if `output` is undefined or not floating-point
  at::Tensor scale(const at::Tensor& output);
  std::vector<at::Tensor> scale(at::TensorList outputs);

  /// Divides the gradients of the optimizer's parameters by the scale, and records whether a gradient is infinite or
  /// NaN. Call this function at most once in each iteration, before step(). If you do not call it, step() unscales the
  /// gradients.
  /// Throws: c10::ValueError if it is called twice or after step(), if scale() was not called, or if no parameter has a
  ///         gradient. It is also thrown if a gradient is fp16 and allow_fp16 is false, or if a sparse gradient is not
  ///         in COO layout
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Calls the optimizer's step() and returns its result. The step is skipped if a gradient is infinite or NaN. If the
  /// optimizer's step() throws, call zero_grad(). The next scale() then starts a new iteration.
  /// Params: closure – must be null if the scaler is enabled, because gradients that a closure computes would not be
  ///         unscaled
  /// Throws: c10::ValueError if it is called twice before update(), if scale() was not called, if no parameter has a
  ///         gradient, or if `closure` is set and the scaler is enabled. Exceptions of unscale_() and of the optimizer
  ///         are passed on
  at::Tensor step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure = nullptr);

  /// Ends the iteration. The scale is lowered if a step was skipped, and raised after growth_interval steps without
  /// skips.
  /// Throws: c10::ValueError if neither step() nor unscale_() was called since the last update()
  void update();
  /// Ends the iteration and sets the scale.
  /// Throws: c10::ValueError if scale() was not called, if the number `new_scale` is not positive and finite, or if the
  ///         tensor `new_scale` requires a gradient or does not have exactly one element
  void update(double new_scale);
  void update(const at::Tensor& new_scale);

  /// Returns the result of the last check in unscale_() or step(), as a 0-d float32 tensor on the scale's device. It is
  /// above 0 if a gradient was infinite or NaN. The function does not wait for the device.
  /// Throws: c10::ValueError if neither step() nor unscale_() was called for `optimizer` since the last update()
  at::Tensor found_inf(const torch::optim::Optimizer& optimizer) const;

  bool is_enabled() const { return options_.enabled; }
  /// Returns the scale, or 1 if the scaler is disabled. Waits for the device.
  double get_scale() const;
  /// Returns the number of successive steps without skips. Waits for the device.
  int64_t get_growth_tracker() const;
  double get_growth_factor() const { return options_.growth_factor; }
  double get_backoff_factor() const { return options_.backoff_factor; }
  int64_t get_growth_interval() const { return options_.growth_interval; }
  /// Throws: c10::ValueError under the same conditions as the constructor
  void set_growth_factor(double factor);
  void set_backoff_factor(double factor);
  void set_growth_interval(int64_t steps);

  /// Returns the five entries of PyTorch's state as 0-d tensors: scale, growth_factor, backoff_factor, growth_interval,
  /// _growth_tracker. The state is empty if the scaler is disabled. Call this function after update(). Waits for the
  /// device.
  NamedTensors state_dict() const;
  /// Restores a state that state_dict() returned. Does nothing if the scaler is disabled.
  /// Throws: c10::ValueError if the state is empty (saved by a disabled scaler), or if an entry is missing, unknown or
  ///         out of range. The scaler is then unchanged
  void load_state_dict(const NamedTensors& state);

 private:
  using ByDevice = std::unordered_map<c10::Device, at::Tensor>;
  enum class Stage { ready, unscaling, unscaled, stepped };
  struct Gradients;
  struct PerOptimizer {
    Stage stage = Stage::ready;
    bool failed = false;  ///< step() or unscale_() failed; the next scale() resets the state
    ByDevice found_inf;   ///< one tensor per device that has gradients
  };

  void place(c10::Device device);
  void check_placed(std::string_view function) const;
  void forget_failed_steps();
  static Gradients gradients_of(torch::optim::Optimizer& optimizer, bool allow_fp16);
  ByDevice check_gradients(const Gradients& gradients, const at::Tensor& inverse_scale) const;
  at::Tensor sum_of(const ByDevice& found_inf) const;
  at::Tensor step_scaled(torch::optim::Optimizer& optimizer, ScaledStep& scaled, PerOptimizer& state);

  GradScalerOptions options_;
  int64_t init_growth_tracker_ = 0;
  at::Tensor scale_, growth_tracker_;  ///< 0-d float32 and int32; undefined until the first scale()
  std::unordered_map<const torch::optim::Optimizer*, PerOptimizer> optimizers_;
};

}  // namespace bellows::amp
