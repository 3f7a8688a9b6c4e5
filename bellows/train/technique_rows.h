#pragma once

#include <vector>

#include "bellows/train/technique.h"

namespace bellows::train {

// The rows of the table, in the order in which the ladder climbs them.

/// The same training, computed faster.
std::vector<Technique> speed_techniques();
/// Fewer bits.
std::vector<Technique> precision_techniques();
/// The same training, looked at with less noise: before all else that is judged by the target.
std::vector<Technique> averaging_techniques();
/// Another course of training, with less of it to the target.
std::vector<Technique> course_techniques();
/// Less memory, at a cost in time.
std::vector<Technique> memory_techniques();

}  // namespace bellows::train
