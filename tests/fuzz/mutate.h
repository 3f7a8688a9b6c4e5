#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::fuzz {

/// One or a few of: a bit flipped, a byte set, a run copied elsewhere, a run removed, the end cut off.
inline io::Bytes mutate(io::Bytes bytes, std::mt19937_64& random) {
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % std::max<size_t>(limit, 1)); };
  constexpr int interesting[] = {0, 1, 0x7f, 0x80, 0xff, 0x28, 0x2e, 0x51, 0x52, 0x85};
  for (size_t count = 1 + below(4); count > 0 && !bytes.empty(); --count) {
    const size_t at = below(bytes.size());
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const auto run = static_cast<std::ptrdiff_t>(below(std::min<size_t>(bytes.size() - at, 64)));
    switch (below(6)) {
      case 0:
      case 1:
        *place ^= std::byte{1} << below(8);
        break;
      case 2:
        *place = static_cast<std::byte>(interesting[below(std::size(interesting))]);
        break;
      case 3: {
        const io::Bytes copy(place, place + run);
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size())), copy.begin(), copy.end());
        break;
      }
      case 4:
        bytes.erase(place, place + run);
        break;
      default:
        if (below(4) == 0) bytes.resize(at);
    }
  }
  return bytes;
}

/// About two seconds of what libFuzzer does at length; the sequence of inputs is always the same.
inline void sample_fuzzing(const std::vector<io::Bytes>& seeds, const std::function<void(io::ByteSpan)>& target) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  std::mt19937_64 random(20240607);
  ASSERT_TRUE(std::ranges::any_of(seeds, [](const io::Bytes& seed) { return !seed.empty(); }))
      << "of nothing comes nothing";
  for (size_t round = 0; round < 2000 || std::chrono::steady_clock::now() < end; ++round)
    target(mutate(seeds[round % seeds.size()], random));
}

}  // namespace bellows::fuzz
