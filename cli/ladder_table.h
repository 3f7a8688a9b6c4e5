#pragma once

#include "bellows/ladder/ladder.h"
#include "cli/terminal.h"

namespace bellows::cli {

// The ladder on a terminal: lines of at most 79 letters.

/// The names of the columns.
std::string ladder_head(train::LadderGoal goal);
/// What is known of the rung in progress, and what is going on.
std::string ladder_live_line(const train::LadderEvent& event, train::LadderGoal goal);
/// A finished rung; where it was not kept, the reason follows.
std::string ladder_row(const Terminal& terminal, const train::RungResult& rung, train::LadderGoal goal);
/// After the last rung: every rung against the start and against what was expected, and the total.
std::string ladder_foot(const Terminal& terminal, const train::LadderReport& report);

}  // namespace bellows::cli
