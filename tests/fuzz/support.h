#pragma once

#include <c10/util/Exception.h>

#include "bellows/io/bytes.h"

namespace bellows::fuzz {

/// Runs a parser; the only exception that it may throw is c10::ValueError.
template <class Body>
void rejecting(const Body& body) {
  try {
    body();
  } catch (const c10::ValueError&) {
  }
}

/// Reads what a view points to, so that AddressSanitizer sees it.
inline void touch(io::ByteSpan bytes) {
  uint32_t sum = 0;
  for (const std::byte b : bytes) sum = sum * 31 + std::to_integer<uint32_t>(b);
  static volatile uint32_t sink;
  sink = sink + sum;
}

}  // namespace bellows::fuzz
