#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bellows/models/registry.h"

namespace bellows::models {

/// Small models that represent a large one in a memory plan. `small` has three layers, and at most 4096 words and 128
/// positions. Heads and inner width are reduced only if three layers of full width would have more than 30 million
/// parameters. For each reduced size except layers, `others` has a model in which that size alone is 1.5 or 2 times as
/// large.
struct ModelSkeleton {
  struct Other {
    int64_t ModelSize::*what;  ///< the size in which it differs from `small`
    ModelSize model_size;
  };
  ModelSize full, small;
  std::vector<Other> others;
};

/// Returns: nothing if the entry does not define a model size
/// Throws:  c10::ValueError if the model has more than 10^15 parameters, or its smallest skeleton more than 2^28
///          because its heads are too wide
std::optional<ModelSkeleton> model_skeleton(const ModelEntry& entry);

}  // namespace bellows::models
