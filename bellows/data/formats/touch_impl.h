#pragma once

#include <algorithm>
#include <atomic>

#include "bellows/io/bytes.h"

namespace bellows::data {

/// Reads a byte of every page of a mapped file's part, so that it is in memory: what Source::prefetch does.
inline void touch_pages(io::ByteSpan bytes) {
  constexpr size_t page = 4096;
  unsigned sum = 0;
  for (size_t at = 0; at < bytes.size(); at += page) sum += std::to_integer<unsigned>(bytes[at]);
  if (!bytes.empty()) sum += std::to_integer<unsigned>(bytes.back());
  static std::atomic<unsigned> kept;
  kept.store(sum, std::memory_order_relaxed);  // so that the reads are not left out
}

/// The same of [begin, end), as far as the file goes.
inline void touch_pages(io::ByteSpan file, uint64_t begin, uint64_t end) {
  end = std::min<uint64_t>(end, file.size());
  if (begin < end) touch_pages(file.subspan(begin, end - begin));
}

}  // namespace bellows::data
