#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows::kernels {

/// `size` values as whole numbers of 8 or 4 bits: each group of `group` consecutive values has its smallest value and a
/// step, and a value is stored as the number of steps from the smallest one, rounded up or down at random so that its
/// mean is the value. Where the smallest is 0, as behind a ReLU, code 0 is for zeros alone, and what is above them has its
/// number of steps and 1: rounded down it stays above 0, which is what ReLU's backward asks. A 4-bit group holds value i in
/// the low half of byte i and value i + group / 2 in the high half.
struct GroupCodes {
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< float, BFloat16 or Half
  int64_t size = 0;
  int64_t group = 256;       ///< a multiple of 32, at most 1024; the last group may be shorter, its codes are not
  int bits = 8;              ///< 8 or 4
  uint64_t seed = 0;         ///< of the rounding: the same seed, the same codes
  uint8_t* codes = nullptr;  ///< [codes_bytes()]
  float* ranges = nullptr;   ///< [2 · groups()]: smallest value and step of each group

  int64_t groups() const { return (size + group - 1) / group; }
  int64_t codes_bytes() const { return groups() * group * bits / 8; }
};

/// Numerics: a step is (largest − smallest) / 255, or 15, and where the smallest is 0 by one less; errors are below one step
///           and have mean 0 up to 2⁻¹⁵ of a step; the smallest value of a group comes back exactly, and what is above a
///           smallest 0 as 2⁻¹⁶ of a step at least (as Half: 0 where that is below 3e-8). A group with a value that is not
///           finite, or wider than the largest float, comes back as NaN; one narrower than 5e-32 as its smallest value.
///           Codes are the same bits on every machine and for every number of threads
///           (tests/recompute/group_codes_test.cpp).
/// Cost:     encoding reads each group twice, the second time from the cache, and writes a quarter or an eighth of 4-byte
///           values; decoding the reverse
/// Threads:  runs on libtorch's threads; safe to call from several
void encode_groups(const GroupCodes& args, const void* values);
void decode_groups(const GroupCodes& args, void* values);

/// The same in plain C++, one value after the other.
namespace ref {
void encode_groups(const GroupCodes& args, const void* values);
void decode_groups(const GroupCodes& args, void* values);
}  // namespace ref

/// The random numbers of one group begin here; the one for values i and i + group / 2 is scramble32(key + i).
inline uint32_t group_key(uint64_t seed, int64_t group) {
  uint64_t x = seed + static_cast<uint64_t>(group + 1) * 0x9e3779b97f4a7c15ULL;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<uint32_t>(x ^ (x >> 31));
}

/// How values of one group become codes: (nearest((x − smallest) · scale) + random 16 bits) / 2¹⁶, `levels` at most, and
/// `above_zero` more; 0 for those that are not above `zero`.
struct GroupRange {
  float smallest = 0, step = 0, scale = 0, zero = 0;
  int levels = 0, above_zero = 0;
  bool finite = true;
  GroupRange(float least, float most, bool all_finite, int bits);
};

/// How codes of one group become values: code · step + base, `least` at least; codes up to `zeros` are 0.
struct GroupValues {
  float step, base, least;
  int zeros;
  GroupValues(float smallest, float width_of_step);
};

}  // namespace bellows::kernels
