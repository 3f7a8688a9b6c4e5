#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "bellows/inspect/tensor_timeline.h"
#include "bellows/train/rehearsal.h"

namespace bellows::train {

/// How the bytes of a tensor grow with batch B and length T: a sum of 1, B, T, B·T, T² and B·T², each with a factor.
struct SizeLaw {
  std::array<double, 6> factors{};
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

/// The step of a model at any size, from what lived in its steps at two or three small ones: tensors are matched by their
/// order and origin (phase, autograd node, operator, module), each has its law, and lives as long as it did.
class StepModel {
 public:
  /// Params: sizes, steps – of each recorded step; the last is the pattern for the order
  StepModel(std::vector<StepSize> sizes, std::vector<inspect::TensorTimeline> steps);

  /// What the step would look like. Times are the recorded step's.
  inspect::TensorTimeline at(const StepSize& size) const;
  const std::vector<inspect::TensorLife>& tensors() const { return pattern_.tensors; }
  const std::vector<SizeLaw>& laws() const { return laws_; }

 private:
  inspect::TensorTimeline pattern_;
  std::vector<SizeLaw> laws_;
};

}  // namespace bellows::train
