#pragma once

#include <cstdint>

#include "bellows/data/dataset.h"

namespace bellows::train {

struct Recipe;

/// Batch-size warm-up and progressive resizing over the first epochs, and the resulting number of steps per epoch. All
/// values are pure functions of the recipe and the epoch, so a resumed run continues identically.
/// Ref: arXiv:1711.00489 (batch-size warm-up), arXiv:2104.00298 (progressive resizing)
class Growth {
 public:
  /// Params: full             – the training data with the final batch size
  ///         batches_per_step – batches of an optimizer step
  Growth(const Recipe& recipe, data::Dataset full, int64_t batches_per_step);

  /// Returns the batch size of an epoch. It starts at `batch_size_start` and doubles at equal intervals until it
  /// reaches the full batch size. It is constant if `batch_size_start` is 0.
  int64_t batch_size(int64_t epoch) const;
  int64_t full_batch_size() const { return batch_size_; }
  /// Returns the image size of an epoch. The size grows linearly in multiples of 4. 0 means that images keep their
  /// size.
  int64_t image_size(int64_t epoch) const;
  /// Returns the training data with the batch size of this epoch.
  data::Dataset data(int64_t epoch) const;

  int64_t batches(int64_t epoch) const;
  /// Returns the number of optimizer steps in this epoch. The last step may use fewer than `batches_per_step` batches.
  int64_t steps(int64_t epoch) const;
  /// Returns the number of steps in the first `epochs` epochs.
  int64_t total_steps(int64_t epochs) const;

 private:
  double progress(int64_t epoch) const;

  data::Dataset full_;
  int64_t batch_size_, first_batch_size_, image_size_, first_image_size_, accumulate_;
  double growth_epochs_;
};

}  // namespace bellows::train
