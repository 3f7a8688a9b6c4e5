#pragma once

#include <string>

namespace bellows::train {

struct LadderReport;
struct MemoryTargetReport;

/// The report as a self-contained HTML page with charts: time to target and peak memory by rung, accuracy over time,
/// and the phases of a step. Then follow the table, the machine and the recipe. It works offline, in light and dark
/// mode, and on phones.
std::string ladder_page(const LadderReport& report);
/// The page of a search with a memory target.
std::string ladder_page(const MemoryTargetReport& report);

}  // namespace bellows::train
