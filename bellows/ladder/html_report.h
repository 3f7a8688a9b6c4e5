#pragma once

#include <string>

namespace bellows::train {

struct LadderReport;
struct MemoryTargetReport;

/// Returns the report as a self-contained HTML page. Its charts show time to target and peak memory by rung, accuracy
/// over time, and the phases of a step. Below the charts, the page shows a table of the rungs, a description of the
/// machine, and the recipe. The page works offline, in light and dark mode, and on phones.
std::string ladder_page(const LadderReport& report);
/// Returns the page for a search with a memory target.
std::string ladder_page(const MemoryTargetReport& report);

}  // namespace bellows::train
