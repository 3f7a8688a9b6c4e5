#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "bellows/kernels/host_device.h"

// Number formats of low-bit optimizer state. A code represents a value from -1 to 1, or from 0 to 1. This value is
// multiplied by the scale of its block. The scale is the largest magnitude in the block.
namespace bellows::kernels {

/// The dynamic map of bitsandbytes (arXiv:2110.02861). It contains 0, 1, and the values of `Decades` decades below 1. A
/// decade is a range whose upper end is ten times its lower end. The values of a decade are evenly spaced. Each decade
/// has twice as many values as the next lower decade.
///
/// Each code has a coordinate Y. The binary exponent of Y determines the index e of the decade. Within a decade, the
/// value is a linear function of Y. Each conversion is therefore a table lookup by e and one multiply-add. At e = 0
/// the value is 0, and at e = Decades + 1 it is 1.
/// - Signed codes: Y = code - Z, where Z = 2^Decades - 1 is the code of zero. |Y| is in [2^(e-1), 2^e). -1 has no code.
/// - Unsigned codes: Y = code + 1.5, in [2^e, 2^(e+1)). Code 0 represents zero. It can be read, but is never written.
///   Unsigned codes store second moments. If a second moment were rounded to zero, the update would divide by epsilon.
///   It is rounded up to the smallest value above zero instead, which makes the step smaller.
///
/// Numerics: values are equal to bitsandbytes' table within 2e-6. A number gets the code of the nearest value. If its
///           distance from the midpoint between two values is at most 1e-6 of its magnitude, it can get either code
///           (tests/kernels/low_bit_test.cpp)
template <int Decades, bool Signed>
struct DynamicMap {
  static constexpr int zero = Signed ? (1 << Decades) - 1 : 0;
  static constexpr int least = Signed ? 0 : 1;                            ///< smallest code that is written
  static constexpr int exponent_of_one = Signed ? Decades : Decades + 1;  ///< binary exponent of the Y of 1

  std::array<float, 16> offset{}, slope{};            ///< by e: |value| = slope · |Y| - offset; offsets are positive
  std::array<float, 16> code_offset{}, code_slope{};  ///< by e: magnitude of the code = offset + slope · |value|
  std::array<float, 16> limit{};                      ///< by e: largest magnitude of a code
  std::array<float, 16> threshold{};                  ///< by e: magnitude at which e + 1 begins

  constexpr DynamicMap() {
    double ten = 1;
    for (int e = Decades; e >= 1; --e, ten *= 10) {
      const double first_y = Signed ? (1 << (e - 1)) - 0.5 : 1 << e;  // Y of the value that is 0.1 of its decade
      const double length = Signed ? 1 << (e - 1) : 1 << e;
      slope[e] = static_cast<float>(0.9 / length / ten);
      offset[e] = static_cast<float>(slope[e] * first_y - 0.1 / ten);
      code_slope[e] = static_cast<float>(ten * length / 0.9);
      code_offset[e] = static_cast<float>(first_y - length / 9 - (Signed ? 0 : 1.5));
      limit[e] = static_cast<float>(Signed ? 2 * length - 1 : 2 * length - 2);
      // Midpoint between the last value of this decade and the first value of the next.
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
  /// Params: value – its magnitude must be at most 1
  BELLOWS_HOST_DEVICE int encode(float value) const {
    const float x = std::abs(value);
    int e = 0;
    while (e <= Decades && x >= threshold[e]) ++e;
    const double magnitude = std::min(std::fma(x, code_slope[e], code_offset[e]), limit[e]);
    const int code = static_cast<int>(std::nearbyint(zero + std::copysign(magnitude, Signed ? value : 1.0)));
    return code < least ? least : code;  // std::max takes references, and device code has no address of `least`
  }
};

/// The map for 4-bit second moments. The value of a code is (code + 1) / 16, so the sixteen values are evenly spaced
/// and greater than zero. Zero is excluded, because the update would divide by epsilon if a second moment were rounded
/// to zero (arXiv:2309.01507, "zero-point problem").
struct LinearMap4 {
  static constexpr int zero = 0;
  BELLOWS_HOST_DEVICE float decode(int code, float scale) const {
    return static_cast<float>(code + 1) * (scale * 0.0625f);
  }
  BELLOWS_HOST_DEVICE int encode(float value) const {
    return std::clamp(static_cast<int>(std::nearbyint(std::fma(value, 16.0f, -1.0f))), 0, 15);
  }
};

/// Storage of 8-bit state. The first state tensor has signed codes, and the second has unsigned codes.
struct State8 {
  static constexpr int64_t block = 256;  ///< consecutive elements in memory that share one scale
  static constexpr int64_t block_bytes = 256;
  static constexpr DynamicMap<7, true> first{};
  static constexpr DynamicMap<7, false> second{};
};
/// Storage of 4-bit state. Byte j of a block contains the code of element j in its lower half, and the code of element
/// j + 64 in its upper half.
struct State4 {
  static constexpr int64_t block = 128;
  static constexpr int64_t block_bytes = 64;
  static constexpr DynamicMap<3, true> first{};
  static constexpr LinearMap4 second{};
};

/// Returns the scale of a block with this largest magnitude. The scale for a subnormal magnitude is 0, because the
/// reciprocal of such a magnitude may be infinite.
BELLOWS_HOST_DEVICE inline float usable_scale(float largest) {
  return largest >= 0x1p-126f ? largest : 0.0f;
}

}  // namespace bellows::kernels
