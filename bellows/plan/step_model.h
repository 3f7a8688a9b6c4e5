#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "bellows/inspect/tensor_timeline.h"
#include "bellows/models/model_size.h"
#include "bellows/plan/dry_run.h"

namespace bellows::train {

/// The size of a tensor in bytes as a function of batch B and length T. It is a sum of 1, B, T, B·T, T² and B·T², each
/// multiplied by a factor.
struct SizeLaw {
  std::array<double, 6> factors{};
  /// Upper limit in bytes. It is used for a buffer that is processed in chunks.
  double most = std::numeric_limits<double>::infinity();
  /// False if no such sum matches the recorded sizes. The size is then assumed to grow with B·T.
  bool fits = true;

  int64_t bytes(const StepSize& size) const;
  /// For example "4096 + 98304 B·T".
  std::string to_string() const;
};

/// Returns the simplest law that matches the given bytes: one term, otherwise a constant and one term, otherwise two
/// terms. The match allows for the C heap, which rounds up the sizes of blocks (large blocks to complete pages).
/// Params: sizes – two or three input sizes. If all lengths are equal, the law is not valid for other lengths
/// Throws: c10::ValueError if `sizes` and `bytes` differ in length or have fewer than two entries
SizeLaw fit_size(const std::vector<StepSize>& sizes, const std::vector<int64_t>& bytes);

/// A recorded step with its input size and the size of its model. If the model size is unknown, all its values are 0.
struct RecordedStep {
  StepSize size;
  models::ModelSize model_size;
  inspect::TensorTimeline timeline;
};

/// Predicts a step at any size from recordings at two or three small sizes. Tensors of the recordings are matched by
/// order and origin (phase, autograd node, operator, module). Each tensor has a law for its size and keeps its
/// lifetime.
///
/// If the steps belong to smaller models of the same architecture, the laws also depend on the model size: on heads,
/// inner width, vocabulary size and positions, if these differ between the steps. The number of layers is handled
/// separately. If the recorded model has at least three layers, but fewer than requested, the tensors of the second
/// layer are repeated for each additional layer (depth_extrapolation.h).
class StepModel {
 public:
  /// Params: steps – the recorded steps, all with the same number of layers. The last step determines the order of
  ///                 tensors
  ///         wanted – the requested model size
  ///         few_scores – whether memory that grows with batch, length and vocabulary is a buffer of limited size in
  ///                      nn::linear_cross_entropy()
  /// Throws: c10::ValueError if there are fewer than two steps; c10::Error like extrapolate_depth()
  explicit StepModel(std::vector<RecordedStep> steps, const models::ModelSize& wanted = {}, bool few_scores = false);

  /// Returns the predicted step. Its times are those of the recorded step.
  inspect::TensorTimeline at(const StepSize& size) const;
  const std::vector<inspect::TensorLife>& tensors() const { return pattern_.tensors; }
  const std::vector<SizeLaw>& laws() const { return laws_; }

 private:
  inspect::TensorTimeline pattern_;
  std::vector<SizeLaw> laws_;
};

}  // namespace bellows::train
