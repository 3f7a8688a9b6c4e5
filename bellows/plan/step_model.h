#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "bellows/inspect/tensor_timeline.h"
#include "bellows/models/extent.h"
#include "bellows/plan/dry_run.h"

namespace bellows::train {

/// How the bytes of a tensor grow with batch B and length T: a sum of 1, B, T, B·T, T² and B·T², each with a factor.
struct SizeLaw {
  std::array<double, 6> factors{};
  double most = std::numeric_limits<double>::infinity();  ///< bytes that it never is above: a buffer for chunks
  bool fits = true;  ///< false: no such sum gives the bytes seen; they are taken to grow as B·T does

  int64_t bytes(const StepSize& size) const;
  /// "4096 + 98304 B·T".
  std::string to_string() const;
};

/// The simplest law that gives these bytes: one term, else a constant and one, else two. The C heap rounds blocks up, large
/// ones to pages: so much may be missing.
/// Params: sizes – two or three; where all lengths are the same, nothing is said of others
/// Throws: c10::ValueError – numbers differ, or fewer than two
SizeLaw fit_size(const std::vector<StepSize>& sizes, const std::vector<int64_t>& bytes);

/// A step that was taken: of a model of this extent (all 0 where models have none), with so much.
struct RecordedStep {
  StepSize size;
  models::Extent extent;
  inspect::TensorTimeline timeline;
};

/// The step of a model at any size, from what lived in its steps at two or three small ones: tensors are matched by their
/// order and origin (phase, autograd node, operator, module), each has its law, and lives as long as it did.
///
/// Where the steps are those of smaller models of the same make, a law is one of the extent, too: of heads, inner width, words
/// and positions as far as they differ among the steps. Layers do not become a law: with less of them than wanted, and three at
/// least, what lives in the second one lives in each that is added between the second and the third (depth_extrapolation.h).
class StepModel {
 public:
  /// Params: steps – the last is the pattern for the order; all have the same number of layers
  ///         wanted – the extent of the model that is meant
  ///         few_scores – what grows with batch, length and words is nn::linear_cross_entropy()'s buffer, and has its limit
  /// Throws: c10::ValueError – fewer than two steps; c10::Error – as extrapolate_depth()
  explicit StepModel(std::vector<RecordedStep> steps, const models::Extent& wanted = {}, bool few_scores = false);

  /// What the step would look like. Times are the recorded step's.
  inspect::TensorTimeline at(const StepSize& size) const;
  const std::vector<inspect::TensorLife>& tensors() const { return pattern_.tensors; }
  const std::vector<SizeLaw>& laws() const { return laws_; }

 private:
  inspect::TensorTimeline pattern_;
  std::vector<SizeLaw> laws_;
};

}  // namespace bellows::train
