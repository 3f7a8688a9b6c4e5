#pragma once

#include <cstdint>
#include <vector>

#include "bellows/core/seed.h"
#include "bellows/data/order/order.h"

namespace bellows::data {

// Building blocks of shuffled orders: seeds, permutations and weights.

/// Returns the seed for the sequence of one epoch.
uint64_t epoch_seed(uint64_t seed, int64_t epoch);
/// Returns the seed for sequences that continue across epochs.
uint64_t order_seed(uint64_t seed);

/// Converts weights to proportional integers with a sum of about `sum`. Positive weights stay positive.
/// Params: who – name of the caller, for the error message
/// Throws: c10::ValueError if there are no weights, if a weight is negative or not finite, or if all weights are 0
std::vector<uint64_t> integer_weights(const char* who, const std::vector<double>& weights, double sum);

/// Returns a random permutation of 0 … size - 1.
Positions permutation(int64_t size, uint64_t seed);

/// Repeats the numbers 0 … size - 1. Each pass has a new permutation.
class Passes {
 public:
  /// Params: which – distinguishes several sequences with the same seed
  ///         taken – number of next() calls to skip
  Passes(int64_t size, uint64_t seed, int64_t which, int64_t taken);
  int64_t next();

 private:
  int64_t size_, pass_, at_;
  uint64_t seed_;
  Positions order_;
};

/// Shuffles positions [begin, end) locally. Position i is swapped with a random position in [i, reach(i)). All shuffles
/// of orders are special cases of this function.
/// Params: reach – function that is called for i in [begin, end). The result must be above i, must not exceed `end` and
///         must not decrease
template <class Reach>
void shuffle_within(Positions& positions, int64_t begin, int64_t end, RandomStream& random, const Reach& reach) {
  for (int64_t i = begin; i < end; ++i)
    positions.swap(i, i + static_cast<int64_t>(random.below(static_cast<uint64_t>(reach(i) - i))));
}

}  // namespace bellows::data
