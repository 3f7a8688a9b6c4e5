#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bellows/models/registry.h"

namespace bellows::models {

/// Small models that represent a large model in a memory plan. `small` has at most three layers and a vocabulary of at
/// most 4096. If the model has more than 256 positions, `small` has 128. Heads and inner width are reduced only if
/// three layers of full width would have more than 30 million parameters.
///
/// For each reduced size except the number of layers, `others` contains a model in which only this size is larger than
/// in `small`. The size is 1.5 or 2 times as large, but at most the full size. For a token model whose vocabulary is
/// not reduced, `others` contains a model with half of the vocabulary.
struct ModelSkeleton {
  struct Other {
    int64_t ModelSize::*what;  ///< the size in which this model differs from `small`
    ModelSize model_size;
  };
  ModelSize full, small;
  std::vector<Other> others;
};

/// Returns: the skeleton, or nothing if the entry does not define a model size
/// Throws:  c10::ValueError if the model has more than 10^15 parameters, or if the heads are so wide that the smallest
///          skeleton has more than 2^28 parameters
std::optional<ModelSkeleton> model_skeleton(const ModelEntry& entry);

/// Creates a model that has the blocks and the parts of the entry's model at a low cost: in the size
/// ModelSkeleton::small, or in full size without a skeleton. Images without intended channels have three.
/// Throws: like model_skeleton()
Model make_small_model(const ModelEntry& entry);

}  // namespace bellows::models
