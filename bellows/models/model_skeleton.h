#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bellows/models/registry.h"

namespace bellows::models {

/// A model that is too large to be tried out, and smaller ones of the same make that say what it would be like: one of three
/// layers, at most 4096 words and 128 positions, and for each thing that is reduced (but layers) another that has half as
/// much again, or twice as much, of that one alone. Heads and inner width are reduced only where three layers of full width
/// would have more than 30 million parameters.
struct ModelSkeleton {
  struct Other {
    int64_t Extent::*what;  ///< in which it differs from `small`
    Extent extent;
  };
  Extent full, small;
  std::vector<Other> others;
};

/// Returns: nothing – the entry does not say what makes the model large
/// Throws:  c10::ValueError – more than 10^15 parameters; heads so wide that even a skeleton of one has more than 2^28
std::optional<ModelSkeleton> model_skeleton(const ModelEntry& entry);

}  // namespace bellows::models
