// Random words to values, compiled once per instruction set that Highway supports; the best one is chosen at run time.
// This file is compiled without contraction of products and sums, because libtorch's roundings are reproduced.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/random_values.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/highway.h>
// clang-format on

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <limits>

#include "bellows/kernels/cpu/random_parts.h"
#include "bellows/kernels/cpu/values_impl.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

constexpr uint64_t low_53 = (uint64_t{1} << 53) - 1;

/// libtorch draws the high half of 64 bits first.
HWY_INLINE uint64_t wide_word(const uint32_t* words, size_t i) {
  return uint64_t{words[2 * i]} << 32 | words[2 * i + 1];
}

#if HWY_TARGET != HWY_SCALAR
/// The low 53 bits of as many 64-bit draws as a vector holds.
template <class D>
HWY_INLINE hn::Vec<D> load_53(D d, const uint32_t* words) {
  const hn::Repartition<uint32_t, D> d32;
  const auto swapped = hn::BitCast(d, hn::Shuffle2301(hn::LoadU(d32, words)));
  return hn::And(swapped, hn::Set(d, static_cast<int64_t>(low_53)));
}
#endif

template <class T>
HWY_INLINE T bits_of_one(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return static_cast<T>(0x3f800000);
    case c10::ScalarType::Double:
      return static_cast<T>(0x3ff0000000000000);
    case c10::ScalarType::BFloat16:
      return static_cast<T>(0x3f80);
    case c10::ScalarType::Half:
      return static_cast<T>(0x3c00);
    default:
      return T(1);
  }
}

/// libtorch compares x · 2^−53 < p in double. Both sides are exact, so x < ⌈p · 2^53⌉ gives the same result.
template <class T>
void bernoulli_values(const RandomFill& fill, const uint32_t* words, T* out, size_t count) {
  const auto bound = static_cast<int64_t>(std::ceil(fill.a * 0x1p53));
  const T one = bits_of_one<T>(fill.dtype);
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<int64_t, 8> d;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const size_t lanes = hn::Lanes(d), step = sizeof(T) == 8 ? lanes : 2 * lanes;
  const auto limit = hn::Set(d, bound);
  for (; i + step <= count; i += step) {
    const auto first = hn::VecFromMask(d, hn::Lt(load_53(d, words + 2 * i), limit));
    if constexpr (sizeof(T) == 8) {
      hn::StoreU(hn::And(first, hn::Set(d, static_cast<int64_t>(one))), d, reinterpret_cast<int64_t*>(out + i));
    } else {
      const auto second = hn::VecFromMask(d, hn::Lt(load_53(d, words + 2 * (i + lanes)), limit));
      const auto both = hn::ConcatEven(d32, hn::BitCast(d32, second), hn::BitCast(d32, first));
      const auto ones = hn::And(both, hn::Set(d32, uint32_t{one}));
      if constexpr (sizeof(T) == 4) {
        hn::StoreU(ones, d32, out + i);
      } else {
        const hn::Rebind<T, decltype(d32)> narrow;
        hn::StoreU(hn::TruncateTo(narrow, ones), narrow, out + i);
      }
    }
  }
#endif
  for (; i < count; ++i) out[i] = static_cast<int64_t>(wide_word(words, i) & low_53) < bound ? one : T(0);
}

/// Values of type float, BFloat16 or Half, which are computed in float from as many bits as the mantissa of T has.
template <class T>
void uniform_narrow(const RandomFill& fill, const uint32_t* words, T* out, size_t count) {
  constexpr uint32_t mask = (uint32_t{1} << std::numeric_limits<T>::digits) - 1;
  constexpr float scale = 1.0f / (mask + 1);
  const auto from = static_cast<T>(fill.a), to = static_cast<T>(fill.b);
  const auto width = static_cast<float>(static_cast<T>(to - from)), start = static_cast<float>(from);
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto compute = [&](hn::Vec<decltype(d)> x) HWY_ATTR {
    const auto w = hn::Set(d, width), s = hn::Set(d, start);
    return fill.fused ? hn::MulAdd(x, w, s) : hn::Add(hn::Mul(x, w), s);
  };
  const size_t lanes = hn::Lanes(d);
  const auto* signed_words = reinterpret_cast<const int32_t*>(words);
  size_t i = 0;
  const auto step = [&](auto part) HWY_ATTR {
    const auto bits = hn::And(part.load(di, signed_words + i), hn::Set(di, static_cast<int32_t>(mask)));
    part.store(d, compute(hn::Mul(hn::ConvertTo(d, bits), hn::Set(d, scale))), out + i);
  };
  for (; i + lanes <= count; i += lanes) step(Whole{});
  if (i < count) step(Part{count - i});
}

void uniform_wide(const RandomFill& fill, const uint32_t* words, double* out, size_t count) {
  const double width = fill.b - fill.a, start = fill.a;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<double, 8> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  const auto w = hn::Set(d, width), s = hn::Set(d, start), scale = hn::Set(d, 0x1p-53);
  for (; i + lanes <= count; i += lanes) {
    const auto x = hn::Mul(hn::ConvertTo(d, load_53(di, words + 2 * i)), scale);
    hn::StoreU(fill.fused ? hn::MulAdd(x, w, s) : hn::Add(hn::Mul(x, w), s), d, out + i);
  }
#endif
  for (; i < count; ++i) {
    const double x = static_cast<double>(wide_word(words, i) & low_53) * 0x1p-53;
    out[i] = fill.fused ? std::fma(x, width, start) : x * width + start;
  }
}

/// Computes word modulo range for 1 < range ≤ 2^31. The estimated quotient is at most one too small.
HWY_INLINE void modulo(const uint32_t* words, uint32_t range, uint32_t* out, size_t count) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<uint32_t, 16> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const auto inverse = static_cast<uint32_t>((uint64_t{1} << 32) / range);
  const auto m = hn::Set(d, inverse), r = hn::Set(d, range), high = hn::BitCast(d, hn::Set(d64, 0xffffffff00000000));
  const size_t lanes = hn::Lanes(d);
  for (; i + lanes <= count; i += lanes) {
    const auto x = hn::LoadU(d, words + i);
    const auto even = hn::BitCast(d, hn::ShiftRight<32>(hn::MulEven(x, m)));
    const auto odd = hn::BitCast(d, hn::MulEven(hn::Shuffle2301(x), m));
    const auto quotient = hn::Or(even, hn::And(odd, high));
    const auto rest = hn::Sub(x, hn::Mul(quotient, r));
    hn::StoreU(hn::Min(rest, hn::Sub(rest, r)), d, out + i);
  }
#endif
  for (; i < count; ++i) out[i] = words[i] % range;
}

template <class T>
HWY_INLINE void add_base(const uint32_t* x, int64_t base, T* out, size_t count) {
  size_t i = 0;
  if constexpr (std::is_same_v<T, int64_t> && HWY_TARGET != HWY_SCALAR) {
    const hn::CappedTag<uint64_t, 8> d;
    const hn::Rebind<uint32_t, decltype(d)> d32;
    const auto b = hn::Set(d, static_cast<uint64_t>(base));
    for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
      hn::StoreU(hn::Add(hn::PromoteTo(d, hn::LoadU(d32, x + i)), b), d, reinterpret_cast<uint64_t*>(out + i));
    }
  }
  for (; i < count; ++i) out[i] = static_cast<T>(static_cast<int64_t>(x[i] + static_cast<uint64_t>(base)));
}

template <class T>
void narrow_integers(const RandomFill& fill, const uint32_t* words, T* out, size_t count) {
  constexpr size_t part = 512;
  alignas(64) uint32_t x[part];
  for (size_t i = 0; i < count; i += part) {
    const size_t now = HWY_MIN(part, count - i);
    if (fill.range == 1) {
      for (size_t j = 0; j < now; ++j) x[j] = 0;
    } else {
      modulo(words + i, static_cast<uint32_t>(fill.range), x, now);
    }
    add_base(x, fill.base, out + i, now);
  }
}

template <class T>
void wide_integers(const RandomFill& fill, const uint32_t* words, T* out, size_t count) {
  const uint64_t range = fill.range, mask = range - 1;
  const auto base = static_cast<uint64_t>(fill.base);
  const bool by_mask = (range & mask) == 0;  // also without a range, where the mask has all bits
  for (size_t i = 0; i < count; ++i) {
    const uint64_t x = wide_word(words, i);
    out[i] = static_cast<T>(static_cast<int64_t>((by_mask ? x & mask : x % range) + base));
  }
}

template <class T>
void integer_values(const RandomFill& fill, const uint32_t* words, void* out, size_t count) {
  if (fill.wide) {
    wide_integers(fill, words, static_cast<T*>(out), count);
  } else {
    narrow_integers(fill, words, static_cast<T*>(out), count);
  }
}

void convert_bernoulli(const RandomFill& fill, const uint32_t* words, void* out, size_t count) {
  switch (c10::elementSize(fill.dtype)) {
    case 1:
      return bernoulli_values(fill, words, static_cast<uint8_t*>(out), count);
    case 2:
      return bernoulli_values(fill, words, static_cast<uint16_t*>(out), count);
    case 4:
      return bernoulli_values(fill, words, static_cast<uint32_t*>(out), count);
    default:
      return bernoulli_values(fill, words, static_cast<uint64_t*>(out), count);
  }
}

void convert_uniform(const RandomFill& fill, const uint32_t* words, void* out, size_t count) {
  if (fill.dtype == c10::ScalarType::Double) return uniform_wide(fill, words, static_cast<double*>(out), count);
  with_values(fill.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if constexpr (!std::is_same_v<T, double>) uniform_narrow(fill, words, static_cast<T*>(out), count);
  });
}

void convert_integers(const RandomFill& fill, const uint32_t* words, void* out, size_t count) {
  switch (fill.dtype) {
    case c10::ScalarType::Bool:
      return integer_values<bool>(fill, words, out, count);
    case c10::ScalarType::Byte:
      return integer_values<uint8_t>(fill, words, out, count);
    case c10::ScalarType::Char:
      return integer_values<int8_t>(fill, words, out, count);
    case c10::ScalarType::Short:
      return integer_values<int16_t>(fill, words, out, count);
    case c10::ScalarType::Int:
      return integer_values<int32_t>(fill, words, out, count);
    case c10::ScalarType::Long:
      return integer_values<int64_t>(fill, words, out, count);
    default:
      with_values(fill.dtype,
                  [&](auto* type) { integer_values<std::remove_pointer_t<decltype(type)>>(fill, words, out, count); });
  }
}

void compare_narrow_impl(const uint32_t* words, const float* p, uint8_t* out, size_t count) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  const auto* signed_words = reinterpret_cast<const int32_t*>(words);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto bits = hn::And(hn::LoadU(di, signed_words + i), hn::Set(di, 0xffffff));
    const auto x = hn::Mul(hn::ConvertTo(d, bits), hn::Set(d, 0x1p-24f));
    const auto below = hn::BitCast(du, hn::VecFromMask(d, hn::Lt(x, hn::LoadU(d, p + i))));
    hn::StoreU(hn::TruncateTo(d8, hn::And(below, hn::Set(du, 1))), d8, out + i);
  }
  for (; i < count; ++i) out[i] = static_cast<float>(words[i] & 0xffffff) * 0x1p-24f < p[i];
}

void compare_wide_impl(const uint32_t* words, const double* p, uint8_t* out, size_t count) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<double, 8> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const hn::Rebind<uint8_t, decltype(d32)> d8;
  const size_t lanes = hn::Lanes(d);
  const auto below = [&](size_t at) HWY_ATTR {
    const auto x = hn::Mul(hn::ConvertTo(d, load_53(di, words + 2 * at)), hn::Set(d, 0x1p-53));
    return hn::BitCast(d32, hn::VecFromMask(d, hn::Lt(x, hn::LoadU(d, p + at))));
  };
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto both = hn::ConcatEven(d32, below(i + lanes), below(i));
    hn::StoreU(hn::TruncateTo(d8, hn::And(both, hn::Set(d32, 1))), d8, out + i);
  }
#endif
  for (; i < count; ++i) out[i] = static_cast<double>(wide_word(words, i) & low_53) * 0x1p-53 < p[i];
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace bellows::kernels {

HWY_EXPORT(convert_bernoulli);
HWY_EXPORT(convert_uniform);
HWY_EXPORT(convert_integers);
HWY_EXPORT(compare_narrow_impl);
HWY_EXPORT(compare_wide_impl);

void convert_words(const RandomFill& fill, const uint32_t* words, void* out, size_t units) {
  switch (fill.law) {
    case RandomLaw::bernoulli:
      return HWY_DYNAMIC_DISPATCH(convert_bernoulli)(fill, words, out, units);
    case RandomLaw::uniform:
      return HWY_DYNAMIC_DISPATCH(convert_uniform)(fill, words, out, units);
    case RandomLaw::normal:
      return convert_normal(fill, words, out, units);
    case RandomLaw::integers:
      return HWY_DYNAMIC_DISPATCH(convert_integers)(fill, words, out, units);
  }
}

void compare_narrow(const uint32_t* words, const float* p, uint8_t* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(compare_narrow_impl)(words, p, out, count);
}

void compare_wide(const uint32_t* words, const double* p, uint8_t* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(compare_wide_impl)(words, p, out, count);
}

}  // namespace bellows::kernels

#endif  // HWY_ONCE
