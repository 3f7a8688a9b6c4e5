#pragma once

#include <cstdint>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels {

/// `size` dense elements, in any order.
struct NormTensor {
  int64_t size = 0;
  const void* data = nullptr;
  Type type = Type::f32;
};

/// `size` dense elements to scale in place, f32 or f64.
struct ScaleTensor {
  int64_t size = 0;
  void* data = nullptr;
  Type type = Type::f32;
};

/// The quantity that is computed over all elements.
enum class NormSum { abs, squares, max_abs };

}  // namespace bellows::kernels
