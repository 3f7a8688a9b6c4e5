#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/inspect/tensor_timeline.h"
#include "bellows/models/model_skeleton.h"
#include "bellows/plan/dry_run.h"

namespace bellows::train {

/// The repeated block that a module lies in: "encoder.layer.3" of "encoder.layer.3.output"; "" outside of any.
std::string repeated_block(const std::string& module);

/// A step of a deeper model.
struct ExtrapolatedStep {
  inspect::TensorTimeline step;
  std::vector<size_t>
      like;  ///< for each tensor of `step` the one of the shallow model's step that it is a copy of, or is
};

/// The step that a model of three layers takes, as one of `layers` layers takes it. Wherever the step goes through the three
/// (forward, backward, an optimizer's loop; twice with accumulation), all that happens in the second one happens as often as
/// there are layers between the first and the last. A tensor that dies in another layer than it was born in dies as many
/// layers from its own as it did; what dies outside of the layers dies all at once. What was there before belongs to the layer that its name begins with.
/// Throws: c10::ValueError – fewer than three layers are wanted; c10::Error – the step knows no list of just three layers (the
///         modules "encoder.layer.0" to "encoder.layer.2"), or does not go through them one after another
ExtrapolatedStep extrapolate_depth(const inspect::TensorTimeline& step, int64_t layers);

/// A parameter's shape, and how many parameters have it.
struct Shape {
  std::vector<int64_t> sizes;
  int64_t count = 1;
  int64_t elements() const;
};

/// Shapes of the large model's parameters from those of the small ones. Params: others – as in the skeleton
std::vector<Shape> full_shapes(const models::ModelSkeleton& skeleton, const NamedShapes& small,
                               const std::vector<NamedShapes>& others);

}  // namespace bellows::train
