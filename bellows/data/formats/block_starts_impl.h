#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace bellows::data {

/// What Source::block_starts() wants, of the first sample of each file: files without samples begin no block.
inline std::vector<int64_t> block_starts_of(std::vector<int64_t> starts, int64_t size) {
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  if (!starts.empty() && starts.back() == size) starts.pop_back();
  return starts;
}

}  // namespace bellows::data
