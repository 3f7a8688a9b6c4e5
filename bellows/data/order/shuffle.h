#pragma once

#include <cstdint>
#include <vector>

#include "bellows/core/seed.h"
#include "bellows/data/order/order.h"

namespace bellows::data {

// What shuffled orders are made of: the seeds of their sequences, permutations, weights.

/// The seed of an epoch's sequence.
uint64_t epoch_seed(uint64_t seed, int64_t epoch);
/// The seed of what goes on from epoch to epoch.
uint64_t order_seed(uint64_t seed);

/// Weights in proportion, as integers whose sum is about `sum`; none above 0 becomes 0.
/// Throws: c10::ValueError – none, negative or not finite, all 0
std::vector<uint64_t> integer_weights(const char* who, const std::vector<double>& weights, double sum);

/// random_permutation in four bytes a position where they suffice.
Positions permutation(int64_t size, uint64_t seed);

/// 0 … size - 1 over and over, each time in a permutation of its own.
class Passes {
 public:
  /// Params: which – tells sequences of one seed apart
  ///         taken – how many next() calls came before
  Passes(int64_t size, uint64_t seed, int64_t which, int64_t taken);
  int64_t next();

 private:
  int64_t size_, pass_, at_;
  uint64_t seed_;
  Positions order_;
};

/// Draws the i-th position from those that are left of the first `reach(i)`: what lies at i changes places with one of
/// [i, reach(i)). All kinds of shuffling are this with a reach of their own.
/// Params: reach – of i in [begin, end): above i, at most `end`, never falling
template <class Reach>
void shuffle_within(Positions& positions, int64_t begin, int64_t end, RandomStream& random, const Reach& reach) {
  for (int64_t i = begin; i < end; ++i)
    positions.swap(i, i + static_cast<int64_t>(random.below(static_cast<uint64_t>(reach(i) - i))));
}

}  // namespace bellows::data
