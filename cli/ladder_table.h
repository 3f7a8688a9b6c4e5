#pragma once

#include "bellows/ladder/ladder.h"
#include "cli/terminal.h"

namespace bellows::cli {

// The ladder on a terminal, in lines of at most 79 letters.

/// The column names.
std::string ladder_head(train::LadderGoal goal);
/// The results so far of the rung in progress, and the current activity.
std::string ladder_live_line(const train::LadderEvent& event, train::LadderGoal goal);
/// The row of a finished rung. If the rung was not kept, the reason follows.
std::string ladder_row(const Terminal& terminal, const train::RungResult& rung, train::LadderGoal goal);
/// The text after the last rung: each rung compared with the start and with its expected effect, and the total.
std::string ladder_foot(const Terminal& terminal, const train::LadderReport& report);

}  // namespace bellows::cli
