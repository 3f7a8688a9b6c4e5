#pragma once

#include <cstdint>

#include "bellows/data/dataset.h"

namespace bellows::train {

struct Recipe;

/// How batches and images grow over the first epochs, and how many steps an epoch therefore has: pure functions of the
/// recipe and the epoch, so that a resumed run goes on alike.
/// Ref: arXiv:1711.00489 (batch size), arXiv:2104.00298 (progressive resizing)
class Growth {
 public:
  /// Params: full – the training data as they are once all has grown
  Growth(const Recipe& recipe, data::Dataset full);

  /// Doubled in equal stretches of epochs, from batch_size_start on.
  int64_t batch_size(int64_t epoch) const;
  int64_t full_batch_size() const { return batch_size_; }
  /// Grows in a straight line, in multiples of 4; 0: images are left as they come.
  int64_t image_size(int64_t epoch) const;
  /// The data of this epoch, in batches of its size.
  data::Dataset data(int64_t epoch) const;

  int64_t batches(int64_t epoch) const;
  /// Optimizer steps: the last one of an epoch may have fewer batches than `accumulate`.
  int64_t steps(int64_t epoch) const;
  /// Of the first `epochs` epochs.
  int64_t total_steps(int64_t epochs) const;

 private:
  double progress(int64_t epoch) const;

  data::Dataset full_;
  int64_t batch_size_, first_batch_size_, image_size_, first_image_size_, accumulate_;
  double growth_epochs_;
};

}  // namespace bellows::train
