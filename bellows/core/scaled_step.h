#pragma once

#include <ATen/core/Tensor.h>

namespace bellows {

/// What amp::GradScaler and an optimizer that unscales by itself agree on. The scaler hands over two scalars on the
/// device before step(); the step divides every gradient by the scale while it reads it, and changes nothing if a
/// gradient was infinite or NaN. The host never waits for either.
/// Ref:      torch.optim.Adam(fused=True): `grad_scale`, `found_inf`
class ScaledStep {
 public:
  /// Whether the next step() would heed the scalars; false: the scaler unscales and decides itself.
  virtual bool takes_grad_scale() const = 0;
  /// Params: grad_scale – 0-d float32; undefined: gradients are already unscaled
  ///         found_inf – 0-d float32, above 0: the step changes nothing; undefined: always step
  /// The next step() uses both and forgets them.
  virtual void set_grad_scale(at::Tensor grad_scale, at::Tensor found_inf) = 0;

 protected:
  ~ScaledStep() = default;
};

}  // namespace bellows
