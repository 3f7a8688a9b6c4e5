#pragma once

#include <algorithm>
#include <cstdint>

#include "bellows/io/bytes.h"

namespace bellows::data {

/// Brings the pages of [begin, end) of a mapped file into memory by reading a byte of each.
/// Returns: a sum of these bytes; the compiler leaves out what nobody uses
inline uint8_t touch_pages(io::ByteSpan file, uint64_t begin, uint64_t end) {
  constexpr uint64_t page_bytes = 4096;
  uint8_t sum = 0;
  for (uint64_t at = begin; at < std::min<uint64_t>(end, file.size()); at += page_bytes)
    sum = static_cast<uint8_t>(sum + std::to_integer<uint8_t>(file[at]));
  return sum;
}

}  // namespace bellows::data
