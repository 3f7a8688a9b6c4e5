#pragma once

#include <string>

#include "bellows/ladder/ladder.h"
#include "cli/terminal.h"

namespace bellows::cli {

/// The parts of the table that `bellows ladder --ranks` and `--compare` print.
std::string comparison_head();
/// The row that shows a measurement in progress, in one line.
std::string comparison_live_line(const train::LadderEvent& event);
std::string comparison_row(const Terminal& terminal, const train::RungResult& rung);
std::string comparison_foot(const Terminal& terminal, const train::LadderReport& report);

}  // namespace bellows::cli
