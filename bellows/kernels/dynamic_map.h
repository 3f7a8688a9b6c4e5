#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "bellows/kernels/host_device.h"

// Numbers of low-bit optimizer state. Values lie between -1 and 1 (or 0 and 1) and are multiplied by the scale of their
// block: the largest magnitude among its elements.
namespace bellows::kernels {

/// The dynamic map of bitsandbytes (arXiv:2110.02861): 0, 1, and `Decades` decades below 1 whose values lie evenly,
/// each decade with twice as many as the one below it. Every code has a place Y on a line, such that the binary
/// exponent of Y tells the number e of its decade, and within a decade value and Y are a straight line: a look-up by e
/// and one multiplication lead from one to the other. e = 0 is zero, e = Decades + 1 is one.
/// - signed codes: Y = code - Z with Z = 2^Decades - 1, the code of zero; |Y| in [2^(e-1), 2^e); there is no -1
/// - unsigned codes: Y = code + 1.5 in [2^e, 2^(e+1)). Code 0, of zero, is read but never written: they hold second moments, and
///   one that is rounded to zero would divide by epsilon. Rounded up to the first value above zero it shortens a step.
/// Numerics: values within 2e-6 of bitsandbytes' table; codes are the nearest value's, either one where the number lies
///           within 1e-6 of its magnitude of the middle (tests/kernels/low_bit_test.cpp)
template <int Decades, bool Signed>
struct DynamicMap {
  static constexpr int zero = Signed ? (1 << Decades) - 1 : 0;
  static constexpr int least = Signed ? 0 : 1;                            ///< code that is written
  static constexpr int exponent_of_one = Signed ? Decades : Decades + 1;  ///< of the Y of 1

  std::array<float, 16> offset{}, slope{};            ///< by e: |value| = slope · |Y| - offset; offsets are positive
  std::array<float, 16> code_offset{}, code_slope{};  ///< by e: magnitude of the code = offset + slope · |value|
  std::array<float, 16> limit{};                      ///< by e: the largest magnitude of a code
  std::array<float, 16> threshold{};                  ///< by e: where e + 1 begins

  constexpr DynamicMap() {
    double ten = 1;
    for (int e = Decades; e >= 1; --e, ten *= 10) {
      const double first_y = Signed ? (1 << (e - 1)) - 0.5 : 1 << e;  // where the value is 0.1 of its decade
      const double length = Signed ? 1 << (e - 1) : 1 << e;
      slope[e] = static_cast<float>(0.9 / length / ten);
      offset[e] = static_cast<float>(slope[e] * first_y - 0.1 / ten);
      code_slope[e] = static_cast<float>(ten * length / 0.9);
      code_offset[e] = static_cast<float>(first_y - length / 9 - (Signed ? 0 : 1.5));
      limit[e] = static_cast<float>(Signed ? 2 * length - 1 : 2 * length - 2);
      // Half way between the last value of this decade and the first of the next.
      const double half_step = 0.45 / length, next = e == Decades ? 1 : 1 + half_step * 5;
      threshold[e] = static_cast<float>((1 - half_step + next) / 2 / ten);
      if (e == 1) threshold[0] = static_cast<float>((0.1 + half_step) / 2 / ten);
    }
    offset[Decades + 1] = 0.8f;
    slope[Decades + 1] = static_cast<float>(1.8 / (Signed ? 1 << Decades : (2 << Decades) + 0.5));
    code_offset[Decades + 1] = limit[Decades + 1] = Signed ? 1 << Decades : (2 << Decades) - 1;
  }

  BELLOWS_HOST_DEVICE float decode(int code, float scale) const {
    const float y = Signed ? static_cast<float>(std::abs(code - zero)) : static_cast<float>(code) + 1.5f;
    const int e = y == 0 ? 0 : std::ilogb(y) + Decades + 1 - exponent_of_one;
    const float value = std::fma(slope[e] * scale, y, -offset[e] * scale);
    return code < zero ? -value : value;
  }
  /// Params: value – at most 1 in magnitude
  BELLOWS_HOST_DEVICE int encode(float value) const {
    const float x = std::abs(value);
    int e = 0;
    while (e <= Decades && x >= threshold[e]) ++e;
    const double magnitude = std::min(std::fma(x, code_slope[e], code_offset[e]), limit[e]);
    return std::max(static_cast<int>(std::nearbyint(zero + std::copysign(magnitude, Signed ? value : 1.0))), least);
  }
};

/// (code + 1) / 16: sixteen values above zero, evenly. A second moment that is rounded to zero would divide by epsilon
/// (arXiv:2309.01507, "zero-point problem").
struct LinearMap4 {
  static constexpr int zero = 0;
  BELLOWS_HOST_DEVICE float decode(int code, float scale) const {
    return static_cast<float>(code + 1) * (scale * 0.0625f);
  }
  BELLOWS_HOST_DEVICE int encode(float value) const {
    return std::clamp(static_cast<int>(std::nearbyint(std::fma(value, 16.0f, -1.0f))), 0, 15);
  }
};

/// How state of some width is stored: the first state is signed, the second is not.
struct State8 {
  static constexpr int64_t block = 256;  ///< elements, in the order of memory, with one scale
  static constexpr int64_t block_bytes = 256;
  static constexpr DynamicMap<7, true> first{};
  static constexpr DynamicMap<7, false> second{};
};
/// Byte j of a block holds the codes of its elements j, in the lower half, and j + 64.
struct State4 {
  static constexpr int64_t block = 128;
  static constexpr int64_t block_bytes = 64;
  static constexpr DynamicMap<3, true> first{};
  static constexpr LinearMap4 second{};
};

/// What the largest magnitude of a block becomes: numbers that have no reciprocal count as zero.
BELLOWS_HOST_DEVICE inline float usable_scale(float largest) {
  return largest >= 0x1p-126f ? largest : 0.0f;
}

}  // namespace bellows::kernels
