#pragma once

#include <string>

namespace bellows {

/// Returns a text that is impossible to guess: 32 hexadecimal digits from the system's random number generator.
/// Throws: c10::Error if the system returns no random numbers
std::string random_token();

}  // namespace bellows
