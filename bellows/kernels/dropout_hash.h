#pragma once

#include <cmath>
#include <cstdint>

#include "bellows/kernels/dropout_norm.h"
#include "bellows/kernels/host_device.h"

// Random bits for dropout. They are a 32-bit hash of the column, with two keys per row. The multipliers and shifts are
// from lowbias32 (https://nullprogram.com/blog/2018/07/31/, improved by TheIronBorn).
namespace bellows::kernels {

struct DropoutRow {
  uint32_t first, second;

  BELLOWS_HOST_DEVICE DropoutRow(uint64_t seed, int64_t row) {
    uint64_t z = seed + static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    first = static_cast<uint32_t>(z);
    second = static_cast<uint32_t>(z >> 32);
  }
};

constexpr uint32_t dropout_multiplier_1 = 0x21F0AAAD, dropout_multiplier_2 = 0xD35A2D97;

/// Returns the threshold for dropout probability p. An element is dropped if its 31-bit hash is less than the
/// threshold.
inline int32_t dropout_threshold(double p) {
  return static_cast<int32_t>(std::lround(p * 2147483647.0));
}

BELLOWS_HOST_DEVICE inline int32_t dropout_hash(const DropoutRow& row, int64_t column) {
  uint32_t h = static_cast<uint32_t>(column) + row.first;
  h = (h ^ (h >> 16)) * dropout_multiplier_1;
  h = (h ^ (h >> 15) ^ row.second) * dropout_multiplier_2;
  return static_cast<int32_t>((h ^ (h >> 15)) >> 1);
}

}  // namespace bellows::kernels
