#pragma once

#include <string>
#include <vector>

#include "bellows/techniques/technique.h"

namespace bellows::train {

// The rows of the table of techniques, in the order of the ladder.

/// If the model does not read images (or texts), returns this fact as the reason why a technique for such inputs does
/// not apply. Otherwise, returns an empty text.
std::string pictures_obstacle(const Recipe& recipe);
std::string texts_obstacle(const Recipe& recipe);

/// Techniques that execute the same training faster.
std::vector<Technique> speed_techniques();
/// Techniques that use lower precision.
std::vector<Technique> precision_techniques();
/// Techniques that run the same training with compiled functions.
std::vector<Technique> compile_techniques();
/// Averaged weights, which reduce the noise of evaluations. They come before all other techniques that are judged by
/// the time to target.
std::vector<Technique> averaging_techniques();
/// Techniques that change the course of training to reach the target earlier.
std::vector<Technique> course_techniques();
/// Techniques that need less memory, but more time.
std::vector<Technique> memory_techniques();

}  // namespace bellows::train
