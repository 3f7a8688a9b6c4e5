#pragma once

#include <string>

namespace bellows {

/// The number of times that `text` contains `part`.
inline size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
  return count;
}

}  // namespace bellows
