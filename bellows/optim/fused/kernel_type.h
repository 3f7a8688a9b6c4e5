#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::optim {

/// Returns the kernels' enumerator for an element type, or nothing if the kernels do not support it.
inline std::optional<kernels::Type> kernel_type(c10::ScalarType type) {
  switch (type) {
    case c10::kFloat:
      return kernels::Type::f32;
    case c10::kDouble:
      return kernels::Type::f64;
    case c10::kBFloat16:
      return kernels::Type::bf16;
    case c10::kHalf:
      return kernels::Type::f16;
    default:
      return std::nullopt;
  }
}

}  // namespace bellows::optim
