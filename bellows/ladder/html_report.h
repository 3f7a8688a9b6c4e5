#pragma once

#include <string>

namespace bellows::train {

struct LadderReport;
struct MemoryTargetReport;

/// The report as one HTML page with charts: time to the target and peak memory by rung, accuracy against time, where a
/// step's time goes; then the table, the machine and the recipe. It needs no other file and no network, follows the
/// reader's choice of light or dark, and fits a phone.
std::string ladder_page(const LadderReport& report);
/// The same of a search under a memory target.
std::string ladder_page(const MemoryTargetReport& report);

}  // namespace bellows::train
