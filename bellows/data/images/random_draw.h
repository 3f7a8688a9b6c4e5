#pragma once

#include <c10/util/Exception.h>

#include "bellows/core/seed.h"

namespace bellows::data {

/// Draws an integer uniformly from [0, end).
inline int64_t draw_below(RandomStream& random, int64_t end) {
  return static_cast<int64_t>(random.below(static_cast<uint64_t>(end)));
}

/// Draws a number uniformly from [least, most).
inline double draw_between(RandomStream& random, double least, double most) {
  return least + (most - least) * random.uniform();
}

/// Checks a probability.
/// Params: what – name of the caller, for the message
/// Throws: c10::ValueError if p is outside [0, 1]
inline void check_probability(const char* what, double p) {
  TORCH_CHECK_VALUE(p >= 0 && p <= 1, what, ": expected a probability in [0, 1], got ", p, ".");
}

}  // namespace bellows::data
