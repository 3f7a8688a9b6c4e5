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

/// Params: init_scale – first scale; a power of two is exact
///         growth_factor – the scale is multiplied by it after `growth_interval` good steps in a row
///         backoff_factor – and by this after a step in which a gradient was infinite or NaN
///         enabled – false: scale() returns its argument, step() steps, everything else does nothing
///         allow_fp16 – unscale fp16 gradients, too; only for models that have no other weights (policy O3), because
///         what underflows while it is unscaled is lost
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool enabled = true;
  bool allow_fp16 = false;
};

/// Keeps small fp16 gradients from becoming zero: multiplies the loss before backward, divides the gradients behind it,
/// leaves out steps whose gradients overflowed, and finds by itself how large the factor may be.
/// ```
/// scaler.scale(loss).backward();
/// scaler.unscale_(optimizer);          // only to look at or clip the true gradients
/// scaler.step(optimizer);              // for each optimizer
/// scaler.update();                     // once
/// ```
/// Works with any torch::optim::Optimizer, several of them, on several devices, with sparse gradients. bf16 has fp32's
/// range and needs no scaling.
/// Numerics: scales, skipped steps and parameters as Python's over 200 steps with injected infinities, two optimizers,
///           dense and sparse (tests/amp/grad_scaler_golden_test.cpp)
/// Cost:     one pass over the gradients. step() waits for the device once, not at all for an optimizer that is a
///           ScaledStep; the other functions do not wait except where they say so
/// Threads:  one owner
/// Ref:      torch.amp.GradScaler
class GradScaler {
 public:
  /// Throws: c10::ValueError – a scale or factor that is not a number, growth_factor ≤ 1, backoff_factor outside
  ///         (0, 1), init_scale ≤ 0, growth_interval < 1
  explicit GradScaler(const GradScalerOptions& options = {});

  /// `output` times the scale. The first call places the scale on that tensor's device.
  /// Throws: c10::ValueError – undefined, or not floating point
  at::Tensor scale(const at::Tensor& output);
  std::vector<at::Tensor> scale(at::TensorList outputs);

  /// Divides the gradients of `optimizer`'s parameters by the scale and notes whether one is infinite or NaN. At most
  /// once before the optimizer's step; step() does it where it was left out.
  /// Throws: c10::ValueError – called twice, or behind step(); scale() was not called; fp16 gradients
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Steps unless a gradient is infinite or NaN. Returns what the optimizer's step returned. After one that threw, the next
  /// scale() begins a new iteration: call zero_grad() before.
  /// Params: closure – must be null unless the scaler is disabled: it would be run with a wrong scale
  /// Throws: c10::ValueError – called twice before update(); scale() was not called; no parameter has a gradient
  at::Tensor step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure = nullptr);

  /// Ends the iteration: lowers the scale if a step was left out, raises it after growth_interval good ones.
  /// Throws: c10::ValueError – no optimizer was checked since the last update()
  void update();
  /// Ends the iteration and sets the scale.
  /// Throws: c10::ValueError – not positive or not finite; a tensor that has not one element or requires a gradient
  void update(double new_scale);
  void update(const at::Tensor& new_scale);

  /// What unscale_() or step() found since the last update(): 0-d float32 on the scale's device, above 0 if a gradient
  /// was infinite or NaN. Does not wait for the device.
  /// Throws: c10::ValueError – `optimizer` was not checked
  at::Tensor found_inf(const torch::optim::Optimizer& optimizer) const;

  bool is_enabled() const { return options_.enabled; }
  /// 1 when disabled. Waits for the device.
  double get_scale() const;
  /// Good steps in a row so far. Waits for the device.
  int64_t get_growth_tracker() const;
  double get_growth_factor() const { return options_.growth_factor; }
  double get_backoff_factor() const { return options_.backoff_factor; }
  int64_t get_growth_interval() const { return options_.growth_interval; }
  /// Throws: c10::ValueError – as the constructor
  void set_growth_factor(double factor);
  void set_backoff_factor(double factor);
  void set_growth_interval(int64_t steps);

  /// Python's five entries as 0-d tensors: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker.
  /// Empty when disabled. Call it behind update(). Waits for the device.
  NamedTensors state_dict() const;
  /// Does nothing when disabled.
  /// Throws: c10::ValueError – empty (saved by a disabled scaler), an entry is missing, unknown or out of range;
  ///         nothing has been changed then
  void load_state_dict(const NamedTensors& state);

 private:
  using ByDevice = std::unordered_map<c10::Device, at::Tensor>;
  enum class Stage { ready, unscaling, unscaled, stepped };
  struct Gradients;
  struct PerOptimizer {
    Stage stage = Stage::ready;
    bool failed = false;  ///< step() or unscale_(): the next scale() begins anew
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
