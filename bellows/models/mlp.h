#pragma once

#include <cstdint>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::models {

struct MlpOptions {
  int64_t in_features = 64;
  std::vector<int64_t> hidden = {128, 128};  ///< width of each hidden layer
  int64_t num_classes = 10;
  double dropout = 0;  ///< dropout rate after each hidden layer
};

/// Linear layers with ReLU between them. All dims after the first are flattened. Parameters are named
/// `layers.0.weight`, `layers.0.bias`, `layers.1.weight`, …
/// Shapes: x [N, …] with in_features values per sample → logits [N, num_classes]
/// Throws: c10::ValueError if a width is below 1 or the dropout rate is outside [0, 1). Forward throws c10::ValueError
///         if the number of values per sample is wrong
Model mlp(const MlpOptions& options = {});

}  // namespace bellows::models
