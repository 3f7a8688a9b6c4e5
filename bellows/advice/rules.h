#pragma once

#include <string>
#include <vector>

#include "bellows/advice/findings.h"

namespace bellows::train {

// The parts of the table of findings, and what their rules share. Private to the component.

/// Findings that a recipe key changes.
std::vector<FindingRule> speed_rules();
/// Findings that depend on the code or the sizes of the model.
std::vector<FindingRule> code_rules();
/// Findings about several ranks.
std::vector<FindingRule> rank_rules();

/// Formats a share, such as "71 %".
std::string percent_of(double part, double whole);
/// Returns the speedup if the step no longer needs these seconds.
double gain_without(const RecipeProfile& profile, double seconds);

}  // namespace bellows::train
