#pragma once

#include <string>

namespace bellows::train {

struct LadderReport;
struct MemoryTargetReport;

/// The report as JSON: machine, baseline, rungs, speedup, speedup_equal_batch, and details. NaN becomes null.
std::string to_json(const LadderReport& report);
/// The report as JSON: machine, target_bytes, rungs, chosen (null if none), recipe.
std::string to_json(const MemoryTargetReport& report);

}  // namespace bellows::train
