#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/quant/affine.h"
#include "bellows/quant/methods/input_statistics.h"

namespace bellows::quant {

struct AutoRoundOptions {
  int steps = 200;           ///< number of steps of signed gradient descent
  double learning_rate = 0;  ///< in [0, 1]; decreases linearly to 0. 0: 1 / steps
  bool tune_range = true;    ///< whether the range of each scale may shrink, too
};

/// Chooses for each weight whether it is rounded up or down, by signed gradient descent on the error of the layer's
/// outputs. Each step changes an offset in [−0.5, 0.5] that is added before rounding, and the ends of each range. The
/// result is the best of all steps, so its error never exceeds that of plain rounding.
/// Params:   weight – floating-point, [out, in]
///           inputs – statistics of the layer's inputs, with `in` features
///           scheme – granularity tensor, channel (axis 0) or group
/// Numerics: fp32. The gradient is that of the error over all inputs, not of a random batch. Results are deterministic
///           for a fixed number of threads
/// Cost:     steps · out · in² operations
/// Threads:  thread-safe; uses libtorch's threads
/// Throws:   c10::ValueError if shapes do not match, the weight is not finite, an option is out of range, or there are no
///           inputs
/// Ref:      arXiv:2309.05516
QuantizedTensor auto_round(const at::Tensor& weight, const InputStatistics& inputs, const Scheme& scheme,
                           const AutoRoundOptions& options = {});

}  // namespace bellows::quant
