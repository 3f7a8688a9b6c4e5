#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows::kernels {

/// Quantization of `size` values to 8 or 4 bits, in groups of `group` consecutive values. Each group has its smallest
/// value and a step size. A value is stored as its distance from the smallest value in steps, rounded stochastically so
/// that its expected value is exact.
///
/// If the smallest value is 0, as after ReLU, code 0 is reserved for zeros. The code of a larger value is then one more
/// than its number of steps, so that it stays above 0 even if it is rounded down. The backward pass of ReLU needs this.
///
/// Byte i of a 4-bit group holds value i in its low half and value i + group / 2 in its high half.
struct GroupQuantization {
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< float, BFloat16 or Half
  int64_t size = 0;
  int64_t group = 256;  ///< a multiple of 32, at most 1024; the last group may have fewer values, but it has as many
                        ///< codes
  int bits = 8;         ///< 8 or 4
  uint64_t seed = 0;    ///< seed of the rounding; the same seed gives the same codes
  uint8_t* codes = nullptr;  ///< [codes_bytes()]
  float* ranges = nullptr;   ///< [2 · groups()]: smallest value and step of each group

  int64_t groups() const { return (size + group - 1) / group; }
  int64_t codes_bytes() const { return groups() * group * bits / 8; }
};

/// Numerics: a step is (largest − smallest) / 255 with 8 bits and (largest − smallest) / 15 with 4 bits. If the
///           smallest value is 0, the divisor is one less. Errors are below one step; their mean is 0 to within 2⁻¹⁵ of
///           a step. The smallest value of a group is restored exactly. If it is 0, larger values are restored as at
///           least 2⁻¹⁶ of a step (in Half, as 0 if that is below 3e-8). A group with a non-finite value, or with a
///           range above the largest float, is restored as NaN. A group with a range below 5e-32 is restored as its
///           smallest value. Codes are bit-identical on every machine and for any number of threads
///           (tests/recompute/group_quantization_test.cpp).
/// Cost:     encoding reads each group twice, the second time from the cache. It writes a quarter (8 bits) or an eighth
///           (4 bits) of the size of 4-byte values. Decoding does the reverse.
/// Threads:  runs on libtorch's intra-op threads; safe to call from several threads
void quantize_groups(const GroupQuantization& args, const void* values);
void dequantize_groups(const GroupQuantization& args, void* values);

/// Reference implementation in plain C++, one value at a time.
namespace ref {
void quantize_groups(const GroupQuantization& args, const void* values);
void dequantize_groups(const GroupQuantization& args, void* values);
}  // namespace ref

/// Start of the random sequence of one group. The random number of values i and i + group / 2 is scramble32(key + i).
inline uint32_t group_key(uint64_t seed, int64_t group) {
  uint64_t x = seed + static_cast<uint64_t>(group + 1) * 0x9e3779b97f4a7c15ULL;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<uint32_t>(x ^ (x >> 31));
}

/// Turns the values of one group into codes: (nearest((x − smallest) · scale) + 16 random bits) / 2¹⁶, at most
/// `levels`, plus `above_zero`. Values that are not above `zero` get code 0.
struct GroupRange {
  float smallest = 0, step = 0, scale = 0, zero = 0;
  int levels = 0, above_zero = 0;
  bool finite = true;
  GroupRange(float least, float most, bool all_finite, int bits);
};

/// Turns the codes of one group into values: code · step + base, at least `least`. Codes up to `zeros` become 0.
struct GroupValues {
  float step, base, least;
  int zeros;
  GroupValues(float smallest, float width_of_step);
};

}  // namespace bellows::kernels
