#pragma once

#include <string>

#include "bellows/ladder/ladder.h"

namespace bellows::train {

/// Returns the HTML page of a report with the goal `comparison`.
std::string comparison_page(const LadderReport& report);

}  // namespace bellows::train
