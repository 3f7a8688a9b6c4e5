#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "bellows/quant/affine.h"
#include "bellows/quant/methods/input_statistics.h"

namespace bellows::quant {

struct GptqOptions {
  int64_t block_size = 128;       ///< number of columns after which the remaining columns are updated
  double damping = 0.01;          ///< is added to the diagonal of the second moment, times the mean of the diagonal
  bool activation_order = false;  ///< whether columns with larger inputs are quantized first
};

/// Quantizes the weight of a layer column by column. After each column, the columns that are not yet quantized change so
/// that they compensate for the error in the layer's output.
///
/// Columns whose inputs are always 0 become 0. Groups get their scale when their first column is reached, from the
/// compensated weights at the start of the block. With activation_order, and for schemes with one scale for each row or
/// for the whole weight, scales come from the original weight.
/// Params:   weight – floating-point, [out, in]
///           inputs – statistics of the layer's inputs, with `in` features
///           scheme – granularity tensor, channel (axis 0) or group
/// Numerics: the inverse of the second moment is computed in fp64, and weights are updated in fp32. Division by the scale,
///           with ties to even. Results are deterministic for a fixed number of threads
/// Cost:     O(in³ + out · in²) operations, 3 · in² · 8 bytes of memory
/// Threads:  thread-safe; uses libtorch's threads
/// Throws:   c10::ValueError if shapes do not match, the weight is not finite, an option is out of range, there are no
///           inputs, or the damped second moment is not positive definite
/// Ref:      arXiv:2210.17323; fasterquant() of IST-DASLab/gptq, with static_groups if activation_order is set
QuantizedTensor gptq(const at::Tensor& weight, const InputStatistics& inputs, const Scheme& scheme,
                     const GptqOptions& options = {});

}  // namespace bellows::quant
