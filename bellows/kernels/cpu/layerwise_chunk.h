#pragma once

#include <cstddef>

namespace bellows::kernels::cpu {

/// A range of a tensor in a step of layerwise.h, with its parts of the tensor's sums.
struct LayerwiseChunk {
  size_t tensor = 0, begin = 0, end = 0;
  /// Sums over the range. LAMB: squares of the parameter, and of the update. NovoGrad: squares of the gradient, or its
  /// largest absolute value.
  double sums[2] = {};
  /// The result of the sums of all ranges. LAMB: the step size. NovoGrad: the divisor of the gradient.
  double factor = 0;
};

}  // namespace bellows::kernels::cpu
