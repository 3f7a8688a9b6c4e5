#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bellows::checkpoint {

/// "step-000000001200": what a checkpoint is called, without a suffix.
/// Throws: c10::ValueError – step outside [0, 10^12)
std::string step_name(int64_t step);

/// Paths of the checkpoints in a folder, oldest first.
std::vector<std::string> list_checkpoints(const std::string& folder);

}  // namespace bellows::checkpoint
