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

/// The bytes of a tensor as a function of batch B and length T: a sum of 1, B, T, B·T, T² and B·T², each with a factor.
struct SizeLaw {
  std::array<double, 6> factors{};
  double most = std::numeric_limits<double>::infinity();  ///< upper limit in bytes: a buffer for chunks
  /// False if no such sum matches the observed bytes; then they are assumed to grow with B·T.
  bool fits = true;

  int64_t bytes(const StepSize& size) const;
  /// "4096 + 98304 B·T".
  std::string to_string() const;
};

/// Returns the simplest law that matches these bytes: one term, else a constant and one term, else two terms. It allows
/// for the C heap, which rounds blocks up, large ones to pages.
/// Params: sizes – two or three; if all lengths are equal, the law is not valid for other lengths
/// Throws: c10::ValueError if the numbers of sizes and bytes differ, or there are fewer than two
SizeLaw fit_size(const std::vector<StepSize>& sizes, const std::vector<int64_t>& bytes);

/// A recorded step: its size, and that of its model (all 0 if unknown).
struct RecordedStep {
  StepSize size;
  models::ModelSize model_size;
  inspect::TensorTimeline timeline;
};

/// Predicts a step at any size from its recordings at two or three small sizes. It matches tensors by order and origin
/// (phase, autograd node, operator, module). Each tensor has a law for its bytes and keeps its lifetime.
///
/// If the steps belong to smaller models of the same architecture, laws also depend on the model size: on heads, inner
/// width, words and positions, as far as these differ between the steps. Layers are handled separately. If there are
/// fewer layers than requested, and at least three, the tensors of the second layer are repeated for each additional
/// layer (depth_extrapolation.h).
class StepModel {
 public:
  /// Params: steps – the last one determines the order; all have the same number of layers
  ///         wanted – the requested model size
  ///         few_scores – memory that grows with batch, length and words is the limited buffer of
  ///                      nn::linear_cross_entropy()
  /// Throws: c10::ValueError if there are fewer than two steps; c10::Error like extrapolate_depth()
  explicit StepModel(std::vector<RecordedStep> steps, const models::ModelSize& wanted = {}, bool few_scores = false);

  /// The predicted step. Times are those of the recorded step.
  inspect::TensorTimeline at(const StepSize& size) const;
  const std::vector<inspect::TensorLife>& tensors() const { return pattern_.tensors; }
  const std::vector<SizeLaw>& laws() const { return laws_; }

 private:
  inspect::TensorTimeline pattern_;
  std::vector<SizeLaw> laws_;
};

}  // namespace bellows::train
