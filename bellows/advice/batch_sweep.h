#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// The throughput of a recipe with one batch size.
struct BatchThroughput {
  int64_t batch_size = 0;
  double seconds = 0;  ///< median time of a batch
  double samples_per_s() const { return static_cast<double>(batch_size) / seconds; }
};

/// Returns the smallest batch size at which doubling the batch increases the throughput by less than 5 %. Returns 0 if
/// the throughput still grows at the largest batch size.
int64_t saturating_batch(const std::vector<BatchThroughput>& sweep);

/// Measures the throughput with the recipe's batch size, and with 2, 4 and 8 times as many samples. It stops when
/// saturating_batch() is known.
/// Params: steps      – number of timed steps for each batch size, after two steps without timing
///         time_steps – for tests: returns the seconds per batch, so that no model is trained. May be empty
/// Throws: like profile_recipe()
std::vector<BatchThroughput> sweep_batches(const Recipe& recipe, int64_t steps = 5,
                                           const std::function<double(const Recipe&)>& time_steps = {});

}  // namespace bellows::train
