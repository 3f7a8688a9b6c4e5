#pragma once

#include <cstdint>

#include "bellows/data/dataset.h"

namespace bellows::train {

struct Recipe;

/// Batch-size warm-up and progressive resizing over the first epochs, and the resulting number of steps per epoch. All
/// are pure functions of the recipe and the epoch, so that a resumed run continues identically.
/// Ref: arXiv:1711.00489 (batch size), arXiv:2104.00298 (progressive resizing)
class Growth {
 public:
  /// Params: full – the training data with full batch and image size
  Growth(const Recipe& recipe, data::Dataset full);

  /// Starts at batch_size_start and doubles after equal numbers of epochs.
  int64_t batch_size(int64_t epoch) const;
  int64_t full_batch_size() const { return batch_size_; }
  /// Grows linearly in multiples of 4; 0: images keep their size.
  int64_t image_size(int64_t epoch) const;
  /// The data of this epoch, with its batch size.
  data::Dataset data(int64_t epoch) const;

  int64_t batches(int64_t epoch) const;
  /// Optimizer steps in this epoch; the last one may have fewer batches than `gradient_accumulation_steps`.
  int64_t steps(int64_t epoch) const;
  /// Steps of the first `epochs` epochs.
  int64_t total_steps(int64_t epochs) const;

 private:
  double progress(int64_t epoch) const;

  data::Dataset full_;
  int64_t batch_size_, first_batch_size_, image_size_, first_image_size_, accumulate_;
  double growth_epochs_;
};

}  // namespace bellows::train
