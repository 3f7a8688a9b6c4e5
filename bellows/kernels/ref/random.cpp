#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "bellows/kernels/random.h"

namespace bellows::kernels::ref {

namespace {

uint64_t wide_word(MersenneTwister& state) {
  const uint64_t high = random_word(state);
  return high << 32 | random_word(state);
}

void twist(MersenneTwister& state) {
  constexpr size_t n = MersenneTwister::size, m = 397;
  auto& words = state.words;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t mixed = (words[i] & 0x80000000u) | (words[(i + 1) % n] & 0x7fffffffu);
    words[i] = words[(i + m) % n] ^ (mixed >> 1) ^ (mixed & 1 ? 0x9908b0dfu : 0);
  }
}

float multiply_add(float x, float y, float z, bool fused) {
  const float product = x * y;
  return fused ? std::fma(x, y, z) : product + z;
}

double multiply_add(double x, double y, double z, bool fused) {
  const double product = x * y;
  return fused ? std::fma(x, y, z) : product + z;
}

template <class T>
T uniform_value(MersenneTwister& state, const RandomFill& fill) {
  if constexpr (std::is_same_v<T, double>) {
    const double x = static_cast<double>(wide_word(state) % (uint64_t{1} << 53)) * 0x1p-53;
    return multiply_add(x, fill.b - fill.a, fill.a, fill.fused);
  } else {
    const auto from = static_cast<T>(fill.a), to = static_cast<T>(fill.b);
    constexpr uint32_t count = uint32_t{1} << std::numeric_limits<T>::digits;
    const float x = static_cast<float>(random_word(state) % count) / count;
    const auto width = static_cast<float>(static_cast<T>(to - from));
    return static_cast<T>(multiply_add(x, width, static_cast<float>(from), fill.fused));
  }
}

template <class T>
T integer_value(MersenneTwister& state, const RandomFill& fill) {
  const uint64_t word = fill.wide ? wide_word(state) : random_word(state);
  const uint64_t rest = fill.range == 0 ? word : word % fill.range;
  return static_cast<T>(static_cast<int64_t>(rest + static_cast<uint64_t>(fill.base)));
}

template <class T>
T value(MersenneTwister& state, const RandomFill& fill) {
  switch (fill.law) {
    case RandomLaw::bernoulli:
      return static_cast<T>(static_cast<double>(wide_word(state) % (uint64_t{1} << 53)) * 0x1p-53 < fill.a ? 1 : 0);
    case RandomLaw::integers:
      return integer_value<T>(state, fill);
    default:
      if constexpr (std::is_integral_v<T>) {
        return T(0);
      } else {
        return uniform_value<T>(state, fill);
      }
  }
}

template <class T>
void fill_values(MersenneTwister& state, const RandomFill& fill, char* out, int64_t stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i, out += stride) {
    const T now = value<T>(state, fill);
    std::memcpy(out, &now, sizeof now);
  }
}

}  // namespace

uint32_t random_word(MersenneTwister& state) {
  if (--state.left == 0) {
    twist(state);
    state.left = MersenneTwister::size;
    state.next = 0;
  }
  uint32_t y = state.words[state.next++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

void random_fill(MersenneTwister& state, const RandomFill& fill, void* out, int64_t stride, int64_t count) {
  auto* bytes = static_cast<char*>(out);
  switch (fill.dtype) {
    case c10::ScalarType::Double:
      return fill_values<double>(state, fill, bytes, stride, count);
    case c10::ScalarType::Half:
      return fill_values<c10::Half>(state, fill, bytes, stride, count);
    case c10::ScalarType::BFloat16:
      return fill_values<c10::BFloat16>(state, fill, bytes, stride, count);
    case c10::ScalarType::Bool:
      return fill_values<bool>(state, fill, bytes, stride, count);
    case c10::ScalarType::Byte:
      return fill_values<uint8_t>(state, fill, bytes, stride, count);
    case c10::ScalarType::Char:
      return fill_values<int8_t>(state, fill, bytes, stride, count);
    case c10::ScalarType::Short:
      return fill_values<int16_t>(state, fill, bytes, stride, count);
    case c10::ScalarType::Int:
      return fill_values<int32_t>(state, fill, bytes, stride, count);
    case c10::ScalarType::Long:
      return fill_values<int64_t>(state, fill, bytes, stride, count);
    default:
      return fill_values<float>(state, fill, bytes, stride, count);
  }
}

}  // namespace bellows::kernels::ref
