#pragma once

#include <vector>

#include "bellows/train/technique.h"

namespace bellows::train {

// The rows of the table, in the order in which the ladder climbs them.

/// The same training, computed faster.
std::vector<Technique> speed_techniques();
/// Another training that needs less of it to the target.
std::vector<Technique> training_techniques();
/// Less memory, at a cost in time.
std::vector<Technique> memory_techniques();

}  // namespace bellows::train
