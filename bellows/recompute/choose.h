#pragma once

#include <cstdint>
#include <vector>

#include "bellows/recompute/region_trace.h"

namespace bellows::recompute::detail {

/// Chooses the storages to keep for each region, so that recomputation in backward takes little time. The kept storages
/// take at most `room` bytes in total. The search starts with all storages that autograd saved. It drops the storages
/// that save the least time per byte until the rest fits, and then fills the remaining room.
/// Returns: for each region, one flag per storage
std::vector<std::vector<char>> choose(const std::vector<const RegionTrace*>& regions, int64_t room);

}  // namespace bellows::recompute::detail
