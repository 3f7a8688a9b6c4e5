#pragma once

#include <cstdlib>
#include <string_view>

namespace bellows {

/// Whether long tests run in full: script/test --slow sets BELLOWS_SLOW=1. Other values have no effect.
inline bool slow_tests() {
  const char* slow = std::getenv("BELLOWS_SLOW");
  return slow && std::string_view(slow) == "1";
}

}  // namespace bellows
