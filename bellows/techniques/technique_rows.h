#pragma once

#include <string>
#include <vector>

#include "bellows/techniques/technique.h"

namespace bellows::train {

// The rows of the table, in the order in which the ladder climbs them.

/// What speaks against a technique for models of one kind of input: the model does not read that; "": nothing.
std::string pictures_obstacle(const Recipe& recipe);
std::string texts_obstacle(const Recipe& recipe);

/// The same training, computed faster.
std::vector<Technique> speed_techniques();
/// Fewer bits.
std::vector<Technique> precision_techniques();
/// The same training, recorded and followed.
std::vector<Technique> compile_techniques();
/// The same training, looked at with less noise: before all else that is judged by the target.
std::vector<Technique> averaging_techniques();
/// Another course of training, with less of it to the target.
std::vector<Technique> course_techniques();
/// Less memory, at a cost in time.
std::vector<Technique> memory_techniques();

}  // namespace bellows::train
