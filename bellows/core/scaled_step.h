#pragma once

#include <ATen/core/Tensor.h>

namespace bellows {

/// Interface between amp::GradScaler and optimizers that unscale gradients themselves. Before step(), the scaler passes
/// two scalars on the device. The step divides each gradient by the scale while reading it, and changes nothing if a
/// gradient was infinite or NaN. The host never waits for the scalars.
/// Ref:      torch.optim.Adam(fused=True): `grad_scale`, `found_inf`
class ScaledStep {
 public:
  /// Whether the next step() uses the scalars. If false, the scaler unscales the gradients and decides whether to step.
  virtual bool takes_grad_scale() const = 0;
  /// Sets both scalars for the next step(), which then clears them.
  /// Params: grad_scale – 0-d float32; undefined if gradients are already unscaled
  ///         found_inf – 0-d float32; above 0, the step changes nothing; undefined: always step
  virtual void set_grad_scale(at::Tensor grad_scale, at::Tensor found_inf) = 0;

 protected:
  ~ScaledStep() = default;
};

}  // namespace bellows
