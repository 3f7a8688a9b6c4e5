#pragma once

#include <string>

#include "bellows/tune/study.h"

namespace bellows::tune {

/// Returns a self-contained HTML page about a study: the history of the objective, parallel coordinates, the importance
/// of each parameter, and a table of all trials.
/// Params: title – text
std::string study_page(const Study& study, const std::string& title);

}  // namespace bellows::tune
