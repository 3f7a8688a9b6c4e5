#pragma once

#include <string_view>

#include "bellows/core/model.h"

namespace bellows::models {

/// Sets the parameters to values that depend only on their names and shapes, distributed like usual initial weights.
/// C++ and bench/peers/formula_weights.py compute the same values, so two programs can start from equal weights without
/// a file. Buffers do not change.
/// Numerics: multiples of 2^-15 times a power of two: exact in float32 and float64
void set_formula_weights(const NamedTensors& parameters);
inline void set_formula_weights(const Model& model) {
  set_formula_weights(model.named_parameters());
}

/// Values in [-1, 1) from the same formula, as inputs for comparisons. Float64; exact in float32.
at::Tensor formula_uniform(std::string_view name, c10::IntArrayRef sizes);

/// Class numbers below `classes` from the same formula: int64 [count].
at::Tensor formula_labels(std::string_view name, int64_t count, int64_t classes);

/// Flat indices below `numel` at which comparisons sample a tensor of that name.
std::vector<int64_t> formula_positions(std::string_view name, int64_t numel, int64_t count = 16);

}  // namespace bellows::models
