#pragma once

#include <cstdint>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels {

/// A tensor with `size` dense elements in any order.
struct NormTensor {
  int64_t size = 0;
  const void* data = nullptr;
  Type type = Type::f32;
};

/// A tensor with `size` dense elements of type f32 or f64 that are scaled in place.
struct ScaleTensor {
  int64_t size = 0;
  void* data = nullptr;
  Type type = Type::f32;
};

/// The quantity to compute over all elements.
enum class NormSum { abs, squares, max_abs };

}  // namespace bellows::kernels
