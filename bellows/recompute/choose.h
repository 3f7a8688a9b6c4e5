#pragma once

#include <cstdint>
#include <vector>

#include "bellows/recompute/region_trace.h"

namespace bellows::recompute::detail {

/// Chooses the storages of each region to keep within `room` bytes in total, so that the second runs take the least
/// time. Starts with all storages that autograd saved, drops those that save the least time per byte until the rest
/// fits, and then fills the remaining room.
/// Returns: for each region, one flag per storage
std::vector<std::vector<char>> choose(const std::vector<const RegionTrace*>& regions, int64_t room);

}  // namespace bellows::recompute::detail
