#pragma once

#include <cstdint>
#include <vector>

#include "bellows/core/seed.h"
#include "bellows/data/order/order.h"

namespace bellows::data {

// Building blocks of shuffled orders: seeds, permutations, weights.

/// The seed of one epoch's sequence.
uint64_t epoch_seed(uint64_t seed, int64_t epoch);
/// The seed of sequences that continue across epochs.
uint64_t order_seed(uint64_t seed);

/// Converts weights to proportional integers whose sum is about `sum`. Positive weights stay positive.
/// Params: who – name of the caller, for the error message
/// Throws: c10::ValueError if there are no weights, if a weight is negative or not finite, or if all are 0
std::vector<uint64_t> integer_weights(const char* who, const std::vector<double>& weights, double sum);

/// A random permutation of 0 … size - 1.
Positions permutation(int64_t size, uint64_t seed);

/// Repeats 0 … size - 1, each time in a new permutation.
class Passes {
 public:
  /// Params: which – distinguishes several sequences of one seed
  ///         taken – number of previous next() calls
  Passes(int64_t size, uint64_t seed, int64_t which, int64_t taken);
  int64_t next();

 private:
  int64_t size_, pass_, at_;
  uint64_t seed_;
  Positions order_;
};

/// Draws the i-th position from the remaining ones among the first `reach(i)`: swaps position i with a random one in
/// [i, reach(i)). All shuffles are special cases of it.
/// Params: reach – for i in [begin, end): above i, at most `end`, never decreasing
template <class Reach>
void shuffle_within(Positions& positions, int64_t begin, int64_t end, RandomStream& random, const Reach& reach) {
  for (int64_t i = begin; i < end; ++i)
    positions.swap(i, i + static_cast<int64_t>(random.below(static_cast<uint64_t>(reach(i) - i))));
}

}  // namespace bellows::data
