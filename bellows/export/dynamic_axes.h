#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace bellows {

/// For each input, the axes whose size may differ between calls, and their names: {{"ids", {{0, "batch"}, {1, "tokens"}}}}.
/// Axes with the same name always have the same size.
using DynamicAxes = std::map<std::string, std::map<int64_t, std::string>>;

}  // namespace bellows
