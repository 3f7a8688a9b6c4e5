#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/inspect/tensor_timeline.h"
#include "bellows/models/model_skeleton.h"
#include "bellows/plan/dry_run.h"

namespace bellows::train {

/// The repeated block that contains a module: "encoder.layer.3" for "encoder.layer.3.output"; "" if there is none.
std::string repeated_block(const std::string& module);

/// A step of a deeper model.
struct ExtrapolatedStep {
  inspect::TensorTimeline step;
  /// For each tensor of `step`, the index of the tensor in the recorded step that it copies.
  std::vector<size_t> like;
};

/// Extrapolates a recorded step of a model with three layers to `layers` layers. Wherever the step passes through the
/// three layers (forward, backward, a loop of an optimizer; twice with accumulation), the events of the second layer
/// are repeated for each layer between the first and the last.
///
/// A tensor that dies in another layer than its own keeps the distance in layers. If it dies outside of the layers, all
/// its copies die at that event. Tensors that existed before the step belong to the layer in their name.
/// Throws: c10::ValueError if `layers` is below three. c10::Error if the step has no list of exactly three layers
///         (modules "encoder.layer.0" to "encoder.layer.2"), or does not pass through them in order
ExtrapolatedStep extrapolate_depth(const inspect::TensorTimeline& step, int64_t layers);

/// A parameter shape, and the number of parameters with this shape.
struct Shape {
  std::vector<int64_t> sizes;
  int64_t count = 1;
  int64_t elements() const;
};

/// Derives the parameter shapes of the large model from those of the small ones. Params: others – as in the skeleton
std::vector<Shape> full_shapes(const models::ModelSkeleton& skeleton, const NamedShapes& small,
                               const std::vector<NamedShapes>& others);

}  // namespace bellows::train
