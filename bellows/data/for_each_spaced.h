#pragma once

#include <algorithm>
#include <cstdint>

namespace bellows::data {

/// Calls `visit(i)` for at most `most` of the numbers 0 … n - 1. The numbers are evenly spaced and include 0 and n - 1.
/// Params: most – at least 2
template <class Visit>
void for_each_spaced(int64_t n, int64_t most, const Visit& visit) {
  const int64_t count = std::min(n, most);
  for (int64_t k = 0; k < count; ++k) visit(count == n ? k : k * (n - 1) / (count - 1));
}

}  // namespace bellows::data
