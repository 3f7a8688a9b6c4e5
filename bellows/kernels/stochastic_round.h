#pragma once

#include <cstdint>

#include "bellows/kernels/host_device.h"

// Stochastic rounding: the expected value of the rounded number is the number itself. The random bits depend only on a
// seed and the element's index. They are the same for any number of threads, on every rank, and in every run.
namespace bellows::kernels {

constexpr int64_t rounding_window = 1024;

/// Returns the seed for the n-th tensor that a run with this seed rounds.
inline uint64_t nth_rounding_seed(uint64_t seed, uint64_t n) {
  uint64_t x = (seed ^ 0xD1B54A32D192ED03) + n * 0xAEF17502108EF2D9;
  x = (x ^ (x >> 32)) * 0xDABA0B6EB09322E3;
  return x ^ (x >> 32);
}

/// Returns the key shared by all elements of the window that contains element `at` (splitmix64).
BELLOWS_HOST_DEVICE inline uint32_t rounding_key(uint64_t seed, uint64_t at) {
  uint64_t x = seed + (at / rounding_window + 1) * 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 32);
}

/// Returns 16 random bits for element i of a tensor.
BELLOWS_HOST_DEVICE inline uint32_t rounding_bits(uint64_t seed, uint64_t i) {
  uint32_t x = static_cast<uint32_t>(i % rounding_window) * 0x9E3779B9 + rounding_key(seed, i);
  x = (x ^ (x >> 16)) * 0x7FEB352D;
  x = (x ^ (x >> 15)) * 0x846CA68B;
  return x >> 16;
}

}  // namespace bellows::kernels
