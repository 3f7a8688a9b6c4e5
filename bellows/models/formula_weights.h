#pragma once

#include <string_view>

#include "bellows/core/model.h"

namespace bellows::models {

/// Sets the parameters to values that depend only on their names and shapes. The values are distributed like usual
/// initial weights. bench/peers/formula_weights.py computes the same values in Python, so programs in both languages
/// can start from equal weights without a file. Buffers do not change.
/// Numerics: all values are multiples of 2^-15 times a power of two, so they are exact in float32 and float64
void set_formula_weights(const NamedTensors& parameters);
inline void set_formula_weights(const Model& model) {
  set_formula_weights(model.named_parameters());
}

/// Returns float64 values in [-1, 1) from the same formula, as inputs for comparisons. They are exact in float32.
at::Tensor formula_uniform(std::string_view name, c10::IntArrayRef sizes);

/// Returns `count` class numbers from 0 to `classes` - 1 from the same formula, as int64 [count].
at::Tensor formula_labels(std::string_view name, int64_t count, int64_t classes);

/// Returns the flat indices, below `numel`, at which comparisons sample the tensor `name`.
std::vector<int64_t> formula_positions(std::string_view name, int64_t numel, int64_t count = 16);

}  // namespace bellows::models
