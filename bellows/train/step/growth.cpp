#include "bellows/train/step/growth.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

Growth::Growth(const Recipe& recipe, data::Dataset full, int64_t batches_per_step)
    : full_(std::move(full)),
      batch_size_(full_.loader_options().batch_size),
      first_batch_size_(recipe.batch_size_start > 0 ? std::min(recipe.batch_size_start, batch_size_) : batch_size_),
      image_size_(recipe.image_size),
      first_image_size_(recipe.image_size_start),
      accumulate_(batches_per_step),
      growth_epochs_(recipe.growth_epochs) {}

double Growth::progress(int64_t epoch) const {
  return growth_epochs_ > 0 ? std::min(1.0, static_cast<double>(epoch) / growth_epochs_) : 1;
}

int64_t Growth::batch_size(int64_t epoch) const {
  const double doublings = std::log2(static_cast<double>(batch_size_) / static_cast<double>(first_batch_size_));
  const auto done = static_cast<int64_t>(std::floor(progress(epoch) * std::ceil(doublings)));
  return progress(epoch) >= 1 ? batch_size_ : std::min(batch_size_, first_batch_size_ << done);
}

int64_t Growth::image_size(int64_t epoch) const {
  if (first_image_size_ == 0 || progress(epoch) >= 1) return 0;
  const auto way = static_cast<double>(image_size_ - first_image_size_);
  const auto size = first_image_size_ + static_cast<int64_t>(progress(epoch) * way);
  return size >= image_size_ ? 0 : std::max<int64_t>(first_image_size_, size / 4 * 4);
}

data::Dataset Growth::data(int64_t epoch) const {
  const int64_t size = batch_size(epoch);
  return size == batch_size_ ? full_ : full_.batch(size, full_.loader_options().remainder);
}

int64_t Growth::batches(int64_t epoch) const {
  data::LoaderOptions options = full_.loader_options();
  options.batch_size = batch_size(epoch);
  return data::count_batches(*full_.source(), options, epoch);
}

int64_t Growth::steps(int64_t epoch) const {
  return (batches(epoch) + accumulate_ - 1) / accumulate_;
}

int64_t Growth::total_steps(int64_t epochs) const {
  int64_t total = 0;
  const auto growing = static_cast<int64_t>(std::min(static_cast<double>(epochs), std::ceil(growth_epochs_)));
  for (int64_t epoch = 0; epoch < growing; ++epoch) total += steps(epoch);
  return total + (epochs - growing) * steps(growing);
}

}  // namespace bellows::train
