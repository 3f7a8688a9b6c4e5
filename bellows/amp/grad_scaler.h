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

/// Params: init_scale – first scale; with a power of two, scaling is exact
///         growth_factor – factor of the scale after `growth_interval` successive steps with finite gradients
///         backoff_factor – factor of the scale after a step in which a gradient was infinite or NaN
///         enabled – false: scale() returns its argument, step() steps, and all other functions do nothing
///         allow_fp16 – also unscale fp16 gradients; only for models whose weights are all fp16 (policy O3), because
///         gradients that underflow during unscaling are lost
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool enabled = true;
  bool allow_fp16 = false;
};

/// Prevents small fp16 gradients from becoming zero. It multiplies the loss before backward, divides the gradients
/// after it, skips steps whose gradients overflowed, and adapts the scale automatically.
/// ```
/// scaler.scale(loss).backward();
/// scaler.unscale_(optimizer);          // only if you inspect or clip the true gradients
/// scaler.step(optimizer);              // for each optimizer
/// scaler.update();                     // once
/// ```
/// Works with one or several torch::optim::Optimizer of any kind, on several devices, and with sparse gradients. bf16
/// has the range of fp32 and needs no scaling.
/// Numerics: scales, skipped steps and parameters equal Python's over 200 steps with injected infinities, two
///           optimizers, dense and sparse (tests/amp/grad_scaler_golden_test.cpp)
/// Cost:     one pass over the gradients. step() waits for the device once, or not at all for an optimizer that is a
///           ScaledStep. The other functions wait only where documented.
/// Threads:  not thread-safe
/// Ref:      torch.amp.GradScaler
class GradScaler {
 public:
  /// Throws: c10::ValueError if the scale or a factor is not a finite number, growth_factor ≤ 1, backoff_factor is
  ///         outside (0, 1), init_scale ≤ 0, or growth_interval < 1
  explicit GradScaler(const GradScalerOptions& options = {});

  /// `output` times the scale. The first call places the scale on that tensor's device.
  /// Throws: c10::ValueError if `output` is undefined or not floating-point
  at::Tensor scale(const at::Tensor& output);
  std::vector<at::Tensor> scale(at::TensorList outputs);

  /// Divides the gradients of `optimizer`'s parameters by the scale and records whether one is infinite or NaN. Call it
  /// at most once before the optimizer's step. If you do not call it, step() does.
  /// Throws: c10::ValueError if it is called twice or after step(), if scale() was not called, or for fp16 gradients
  ///         without allow_fp16
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Steps unless a gradient is infinite or NaN. Returns the result of the optimizer's step. If the step throws, the
  /// next scale() starts a new iteration; call zero_grad() before it.
  /// Params: closure – must be null unless the scaler is disabled, because gradients computed in it would not be
  ///         unscaled
  /// Throws: c10::ValueError if it is called twice before update(), if scale() was not called, or if no parameter has a
  ///         gradient
  at::Tensor step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure = nullptr);

  /// Ends the iteration. Lowers the scale if a step was skipped, and raises it after growth_interval steps without
  /// skips.
  /// Throws: c10::ValueError if no optimizer was checked since the last update()
  void update();
  /// Ends the iteration and sets the scale.
  /// Throws: c10::ValueError if `new_scale` is not positive and finite; for a tensor, if it does not have exactly one
  ///         element or requires a gradient
  void update(double new_scale);
  void update(const at::Tensor& new_scale);

  /// The result of unscale_() or step() since the last update(): 0-d float32 on the scale's device, above 0 if a
  /// gradient was infinite or NaN. Does not wait for the device.
  /// Throws: c10::ValueError if `optimizer` was not checked
  at::Tensor found_inf(const torch::optim::Optimizer& optimizer) const;

  bool is_enabled() const { return options_.enabled; }
  /// 1 if disabled. Waits for the device.
  double get_scale() const;
  /// Number of successive steps without skips. Waits for the device.
  int64_t get_growth_tracker() const;
  double get_growth_factor() const { return options_.growth_factor; }
  double get_backoff_factor() const { return options_.backoff_factor; }
  int64_t get_growth_interval() const { return options_.growth_interval; }
  /// Throws: c10::ValueError under the same conditions as the constructor
  void set_growth_factor(double factor);
  void set_backoff_factor(double factor);
  void set_growth_interval(int64_t steps);

  /// The five entries of Python's state as 0-d tensors: scale, growth_factor, backoff_factor, growth_interval,
  /// _growth_tracker. Empty if disabled. Call it after update(). Waits for the device.
  NamedTensors state_dict() const;
  /// Does nothing if disabled.
  /// Throws: c10::ValueError if the state is empty (saved by a disabled scaler), or an entry is missing, unknown or out
  ///         of range; then nothing is changed
  void load_state_dict(const NamedTensors& state);

 private:
  using ByDevice = std::unordered_map<c10::Device, at::Tensor>;
  enum class Stage { ready, unscaling, unscaled, stepped };
  struct Gradients;
  struct PerOptimizer {
    Stage stage = Stage::ready;
    bool failed = false;  ///< step() or unscale_() failed; the next scale() resets the state
    ByDevice found_inf;   ///< by device of the gradients
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
