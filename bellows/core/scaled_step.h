#pragma once

#include <ATen/core/Tensor.h>

namespace bellows {

/// Interface between amp::GradScaler and optimizers that unscale gradients themselves. Before step(), the scaler passes
/// two scalars on the device. step() divides each gradient by the scale while it reads the gradient. If a gradient is
/// infinite or NaN, step() changes nothing. The host never waits for the scalars.
/// Ref: torch.optim.Adam(fused=True): `grad_scale`, `found_inf`
class ScaledStep {
 public:
  /// Returns whether the next step() uses the scalars. If not, the scaler unscales the gradients and decides whether to
  /// step.
  virtual bool takes_grad_scale() const = 0;
  /// Sets both scalars for the next step(), which clears them.
  /// Params: grad_scale – 0-d float32; undefined if gradients are already unscaled
  ///         found_inf  – 0-d float32. If it is greater than 0, the step changes nothing. If undefined, the step always
  ///                      runs
  virtual void set_grad_scale(at::Tensor grad_scale, at::Tensor found_inf) = 0;

 protected:
  ~ScaledStep() = default;
};

}  // namespace bellows
