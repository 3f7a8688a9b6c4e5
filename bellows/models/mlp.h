#pragma once

#include <cstdint>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::models {

struct MlpOptions {
  int64_t in_features = 64;
  std::vector<int64_t> hidden = {128, 128};  ///< width of each hidden layer
  int64_t num_classes = 10;
  double dropout = 0;  ///< behind each hidden layer
};

/// Linear layers with ReLU between them; everything behind the first dimension is flattened first.
/// Parameters are called `layers.0.weight`, `layers.0.bias`, `layers.1.weight`, …
/// Shapes: x [N, …] with in_features values a sample → logits [N, num_classes]
/// Throws: c10::ValueError – a width below 1, dropout outside [0, 1); in forward: another number of values a sample
Model mlp(const MlpOptions& options = {});

}  // namespace bellows::models
