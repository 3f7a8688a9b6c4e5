#pragma once

#include <string>
#include <vector>

#include "bellows/techniques/technique.h"

namespace bellows::train {

// The rows of the table in the order of the ladder.

/// The reason why a technique for images or texts does not apply: the model does not read them. "" if it does.
std::string pictures_obstacle(const Recipe& recipe);
std::string texts_obstacle(const Recipe& recipe);

/// Faster execution of the same training.
std::vector<Technique> speed_techniques();
/// Lower precision.
std::vector<Technique> precision_techniques();
/// The same training with compiled functions.
std::vector<Technique> compile_techniques();
/// Averaged weights, which reduce the noise of evaluations. They come before all other techniques that are judged by
/// the target.
std::vector<Technique> averaging_techniques();
/// Techniques that change the course of training to reach the target earlier.
std::vector<Technique> course_techniques();
/// Less memory at a cost in time.
std::vector<Technique> memory_techniques();

}  // namespace bellows::train
