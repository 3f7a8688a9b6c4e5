#pragma once

#include <vector>

#include "bellows/tune/trial.h"

namespace bellows::tune {

/// Returns for each parameter the share of the objective's variance that it explains alone (the correlation ratio η²).
/// Trials are grouped by the value of the parameter, with up to four groups of equal size for numbers. The share is the
/// variance between the means of the groups, divided by the total variance. To reduce the effect of outliers, the ranks
/// of the objectives are used. Only complete trials count. Returns zeros for fewer than four of them.
std::vector<double> parameter_importance(const SearchSpace& space, const std::vector<Trial>& trials);

}  // namespace bellows::tune
