#pragma once

#include <string>

namespace bellows::train {

struct LadderReport;
struct MemoryTargetReport;

/// Returns the report as JSON: machine, baseline, rungs, speedup, speedup_equal_batch, and details. NaN becomes null.
std::string to_json(const LadderReport& report);
/// Returns the report as JSON: machine, target_bytes, rungs, chosen (null if no recipe was chosen), recipe.
std::string to_json(const MemoryTargetReport& report);

}  // namespace bellows::train
