#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/inspect/tensor_timeline.h"
#include "bellows/models/model_skeleton.h"
#include "bellows/plan/dry_run.h"

namespace bellows::train {

/// Returns the repeated block that contains a module: "encoder.layer.3" for "encoder.layer.3.output". Returns an empty
/// text if there is none.
std::string repeated_block(const std::string& module);

/// A predicted step of a deeper model.
struct ExtrapolatedStep {
  inspect::TensorTimeline step;
  /// For each tensor of `step`, the index of the original tensor in the recorded step.
  std::vector<size_t> like;
};

/// Extrapolates a recorded step of a model with three layers to `layers` layers. The step passes through the layers
/// several times: in forward, in backward, and in loops of an optimizer. With gradient accumulation, there are twice as
/// many passes. In each pass, the events of the second layer are repeated for each layer between the first and the
/// last.
///
/// If a tensor is freed in a different layer from the one in which it was created, its copies are freed at the same
/// distance in layers. If a tensor is freed outside of the layers, all its copies are freed at the same event. Tensors
/// that existed before the step belong to the layer that their name contains.
/// Throws: c10::ValueError if `layers` is below three. c10::Error if the step does not have a list of exactly three
///         layers (modules "encoder.layer.0" to "encoder.layer.2"), or does not pass through them in order
ExtrapolatedStep extrapolate_depth(const inspect::TensorTimeline& step, int64_t layers);

/// The shape of parameters, and the number of parameters with this shape.
struct Shape {
  std::vector<int64_t> sizes;
  int64_t count = 1;
  int64_t elements() const;
};

/// Derives the parameter shapes of the large model from those of the small models.
/// Params: small, others – shapes of the models in ModelSkeleton::small and ModelSkeleton::others
std::vector<Shape> full_shapes(const models::ModelSkeleton& skeleton, const NamedShapes& small,
                               const std::vector<NamedShapes>& others);

}  // namespace bellows::train
