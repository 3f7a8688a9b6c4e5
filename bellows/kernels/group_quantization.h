#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows::kernels {

/// Quantizes `size` values to 8 or 4 bits, in groups of `group` consecutive values. Each group has a smallest value and
/// a step size. The code of a value is its distance from the smallest value, measured in steps. This distance is
/// rounded stochastically, so that the expected result is exact.
///
/// If the smallest value is 0, as after ReLU, code 0 is reserved for zeros. The code of a larger value is then its
/// number of steps plus one, so that it stays greater than 0 even if it is rounded down. The backward pass of ReLU
/// relies on this.
///
/// Byte i of a 4-bit group contains value i in its low half and value i + group / 2 in its high half.
struct GroupQuantization {
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< float, BFloat16 or Half
  int64_t size = 0;
  int64_t group = 256;       ///< a multiple of 32, at most 1024; a shorter last group has this many codes, too
  int bits = 8;              ///< 8 or 4
  uint64_t seed = 0;         ///< seed of the rounding; equal seeds give equal codes
  uint8_t* codes = nullptr;  ///< [codes_bytes()]
  float* ranges = nullptr;   ///< [2 · groups()]: smallest value and step of each group

  int64_t groups() const { return (size + group - 1) / group; }
  int64_t codes_bytes() const { return groups() * group * bits / 8; }
};

/// Numerics: a step is (largest − smallest) / 255 with 8 bits and (largest − smallest) / 15 with 4 bits. If the
///           smallest value is 0, the divisor is 254 or 14. Errors are less than one step, and their mean is 0 within
///           2⁻¹⁵ of a step. The smallest value of a group is restored exactly. If it is 0, larger values are restored
///           as at least 2⁻¹⁶ of a step. (In Half, they are restored as 0 if this is below 3e-8.) A group with a
///           non-finite value, or with a range above the largest float, is restored as NaN. A group with a range below
///           5e-32 is restored as its smallest value. Codes are bit-identical on every machine and for any number of
///           threads (tests/recompute/group_quantization_test.cpp)
/// Cost:     encoding reads each group twice, the second time from the cache. For 4-byte values, it writes a quarter (8
///           bits) or an eighth (4 bits) of their size. Decoding reads the codes and writes the values
/// Threads:  thread-safe; uses libtorch's intra-op threads
void quantize_groups(const GroupQuantization& args, const void* values);
void dequantize_groups(const GroupQuantization& args, void* values);

/// Reference implementations in plain C++. They process one value at a time.
namespace ref {
void quantize_groups(const GroupQuantization& args, const void* values);
void dequantize_groups(const GroupQuantization& args, void* values);
}  // namespace ref

/// Returns the start of a group's random sequence. The values i and i + group / 2 share the random number
/// scramble32(key + i).
inline uint32_t group_key(uint64_t seed, int64_t group) {
  uint64_t x = seed + static_cast<uint64_t>(group + 1) * 0x9e3779b97f4a7c15ULL;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<uint32_t>(x ^ (x >> 31));
}

/// Converts the values of one group to codes. A code is (nearest((x − smallest) · scale) + 16 random bits) / 2¹⁶, at
/// most `levels`, plus `above_zero`. Values that are not greater than `zero` get code 0.
struct GroupRange {
  float smallest = 0, step = 0, scale = 0, zero = 0;
  int levels = 0, above_zero = 0;
  bool finite = true;
  GroupRange(float least, float most, bool all_finite, int bits);
};

/// Converts the codes of one group to values. A value is code · step + base, but at least `least`. Codes up to `zeros`
/// become 0.
struct GroupValues {
  float step, base, least;
  int zeros;
  GroupValues(float smallest, float width_of_step);
};

}  // namespace bellows::kernels
