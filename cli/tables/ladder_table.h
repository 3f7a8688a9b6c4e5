#pragma once

#include "bellows/ladder/ladder.h"
#include "cli/terminal.h"

namespace bellows::cli {

// Functions that show a ladder on a terminal, in lines of at most 79 characters.

/// Returns the line with the names of the columns.
std::string ladder_head(train::LadderGoal goal);
/// Returns the line for the rung that is being measured: its results so far, and the current activity.
std::string ladder_live_line(const train::LadderEvent& event, train::LadderGoal goal);
/// Returns the row of a finished rung. If the rung was not kept, the row is followed by the reason.
std::string ladder_row(const Terminal& terminal, const train::RungResult& rung, train::LadderGoal goal);
/// Returns the text after the last rung. It compares each rung with the start of the ladder and with the expected
/// effect of its technique, and states the total speedup.
std::string ladder_foot(const Terminal& terminal, const train::LadderReport& report);

}  // namespace bellows::cli
