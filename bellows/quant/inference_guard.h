#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace bellows::quant {

/// While the guard exists, operators of a model arrive at taps in one form, with the model's parameters as arguments.
///
/// - Inference mode is off, because it does not decompose all operators.
/// - Gradients are off.
/// - Autocast is off, because operators would receive casts of the parameters.
class InferenceGuard {
 public:
  InferenceGuard() = default;
  InferenceGuard(const InferenceGuard&) = delete;
  InferenceGuard& operator=(const InferenceGuard&) = delete;

 private:
  c10::InferenceMode normal_{false};
  at::NoGradGuard no_gradients_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
};

}  // namespace bellows::quant
