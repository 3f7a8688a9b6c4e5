// Normal values by the method of Box and Muller, compiled once per instruction set that Highway supports; the best one
// is chosen at run time. This file is compiled without contraction of products and sums, because libtorch's roundings
// are reproduced.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/random_normal.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/highway.h>
// clang-format on

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "bellows/kernels/cpu/random_parts.h"
#include "bellows/kernels/cpu/values_impl.h"

#ifndef BELLOWS_KERNELS_NORMAL_TABLE
#define BELLOWS_KERNELS_NORMAL_TABLE
namespace bellows::kernels {

/// Radius, cosine and sine of all uniform values of a type with few bits. libtorch rounds each step to the type.
template <class T>
struct NormalTable {
  static constexpr uint32_t size = uint32_t{1} << std::numeric_limits<T>::digits;
  std::vector<float> radius, cos, sin;

  NormalTable() : radius(size), cos(size), sin(size) {
    const auto rounded = [](auto value) { return static_cast<float>(static_cast<T>(static_cast<float>(value))); };
    for (uint32_t i = 0; i < size; ++i) {
      const float u = rounded(static_cast<float>(i) / size);
      radius[i] = rounded(std::sqrt(rounded(-2.0f * rounded(std::log(rounded(1.0f - u))))));
      const float theta = rounded(2 * std::numbers::pi * u);
      cos[i] = rounded(std::cos(theta));
      sin[i] = rounded(std::sin(theta));
    }
  }
  static const NormalTable& instance() {
    static const NormalTable table;
    return table;
  }
};

}  // namespace bellows::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

bool has_fused_vectors_impl() {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return true;
#else
  return false;
#endif
}

// The polynomials of Cephes for log, sin and cos, with exactly the roundings of libtorch's vector functions: those
// products that its compiler merged with the following sum are rounded once.

/// log(x) for x in [2^−24, 1].
template <class D>
HWY_INLINE hn::Vec<D> log_like_libtorch(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto set = [&](float value) HWY_ATTR { return hn::Set(d, value); };
  const auto exponent = hn::Sub(hn::ShiftRight<23>(hn::BitCast(di, x)), hn::Set(di, 0x7f));
  x = hn::BitCast(d, hn::Or(hn::And(hn::BitCast(di, x), hn::Set(di, 0x7fffff)), hn::Set(di, 0x3f000000)));
  const auto small = hn::Lt(x, set(0.707106781186547524f));
  auto e = hn::Add(hn::ConvertTo(d, exponent), set(1));
  e = hn::Sub(e, hn::IfThenElseZero(small, set(1)));
  x = hn::Add(hn::Sub(x, set(1)), hn::IfThenElseZero(small, x));
  const auto z = hn::Mul(x, x);
  auto y = hn::MulAdd(set(7.0376836292E-2f), x, set(-1.1514610310E-1f));
  y = hn::MulAdd(y, x, set(1.1676998740E-1f));
  y = hn::MulAdd(y, x, set(-1.2420140846E-1f));
  y = hn::MulAdd(y, x, set(1.4249322787E-1f));
  y = hn::MulAdd(y, x, set(-1.6668057665E-1f));
  y = hn::MulAdd(y, x, set(2.0000714765E-1f));
  y = hn::MulAdd(y, x, set(-2.4999993993E-1f));
  y = hn::MulAdd(y, x, set(3.3333331174E-1f));
  y = hn::Mul(y, x);
  y = hn::MulAdd(y, z, hn::Mul(e, set(-2.12194440e-4f)));
  y = hn::NegMulAdd(z, set(0.5f), y);
  return hn::MulAdd(e, set(0.693359375f), hn::Add(x, y));
}

/// sin(x) and cos(x) for x ≥ 0.
template <class D>
HWY_INLINE void sincos_like_libtorch(D d, hn::Vec<D> x, hn::Vec<D>& sin, hn::Vec<D>& cos) {
  const hn::RebindToSigned<D> di;
  const auto set = [&](float value) HWY_ATTR { return hn::Set(d, value); };
  auto octant = hn::ConvertTo(di, hn::Mul(x, set(1.27323954473516f)));
  octant = hn::And(hn::Add(octant, hn::Set(di, 1)), hn::Set(di, ~1));
  const auto y = hn::ConvertTo(d, octant);
  x = hn::MulAdd(y, set(-0.78515625f), x);
  x = hn::MulAdd(y, set(-2.4187564849853515625e-4f), x);
  x = hn::MulAdd(y, set(-3.77489497744594108e-8f), x);
  const auto z = hn::Mul(x, x);
  auto c = hn::MulAdd(set(2.443315711809948E-005f), z, set(-1.388731625493765E-003f));
  c = hn::MulAdd(c, z, set(4.166664568298827E-002f));
  c = hn::MulSub(hn::Mul(c, z), z, hn::Mul(z, set(0.5f)));
  c = hn::Add(c, set(1));
  auto s = hn::MulAdd(set(-1.9515295891E-4f), z, set(8.3321608736E-3f));
  s = hn::MulAdd(s, z, set(-1.6666654611E-1f));
  s = hn::MulAdd(hn::Mul(s, z), x, x);
  const auto four = hn::Set(di, 4);
  const auto sin_sign = hn::ShiftLeft<29>(hn::And(octant, four));
  const auto cos_sign = hn::ShiftLeft<29>(hn::AndNot(hn::Sub(octant, hn::Set(di, 2)), four));
  const auto swap = hn::RebindMask(d, hn::Eq(hn::And(octant, hn::Set(di, 2)), hn::Zero(di)));
  sin = hn::Xor(hn::IfThenElse(swap, s, c), hn::BitCast(d, sin_sign));
  cos = hn::Xor(hn::IfThenElse(swap, c, s), hn::BitCast(d, cos_sign));
}

/// Values in [0, 1) from 24 bits of each word.
template <class D>
HWY_INLINE hn::Vec<D> unit_values(D d, hn::Vec<hn::RebindToSigned<D>> words) {
  return hn::Mul(hn::ConvertTo(d, hn::And(words, hn::Set(hn::RebindToSigned<D>(), 0xffffff))), hn::Set(d, 0x1p-24f));
}

template <class D>
HWY_INLINE void box_muller(D d, const RandomFill& fill, hn::Vec<D> u1, hn::Vec<D> u2, hn::Vec<D>& n1, hn::Vec<D>& n2) {
  const auto mean = hn::Set(d, static_cast<float>(fill.a)), deviation = hn::Set(d, static_cast<float>(fill.b));
  const auto radius = hn::Sqrt(hn::Mul(hn::Set(d, -2.0f), log_like_libtorch(d, hn::Sub(hn::Set(d, 1.0f), u1))));
  const auto theta = hn::Mul(hn::Set(d, static_cast<float>(2 * std::numbers::pi)), u2);
  hn::Vec<D> sin, cos;
  sincos_like_libtorch(d, theta, sin, cos);
  n1 = hn::MulAdd(hn::Mul(radius, cos), deviation, mean);
  n2 = hn::MulAdd(hn::Mul(radius, sin), deviation, mean);
}

/// Fills groups of 16 values: the first half of a group is u1, the second half u2.
void normal_float(const RandomFill& fill, const uint32_t* words, float* out, size_t groups) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto* signed_words = reinterpret_cast<const int32_t*>(words);
  size_t g = 0;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const hn::CappedTag<float, 16> wide;
  const hn::RebindToSigned<decltype(wide)> wide_i;
  for (; g + 2 <= groups; g += 2) {
    const auto a = unit_values(wide, hn::LoadU(wide_i, signed_words + 16 * g));
    const auto b = unit_values(wide, hn::LoadU(wide_i, signed_words + 16 * g + 16));
    hn::Vec<decltype(wide)> n1, n2;
    box_muller(wide, fill, hn::ConcatLowerLower(wide, b, a), hn::ConcatUpperUpper(wide, b, a), n1, n2);
    hn::StoreU(hn::ConcatLowerLower(wide, n2, n1), wide, out + 16 * g);
    hn::StoreU(hn::ConcatUpperUpper(wide, n2, n1), wide, out + 16 * g + 16);
  }
#endif
  for (; g < groups; ++g) {
    const auto u1 = unit_values(d, hn::LoadU(di, signed_words + 16 * g));
    const auto u2 = unit_values(d, hn::LoadU(di, signed_words + 16 * g + 8));
    hn::Vec<decltype(d)> n1, n2;
    box_muller(d, fill, u1, u2, n1, n2);
    hn::StoreU(n1, d, out + 16 * g);
    hn::StoreU(n2, d, out + 16 * g + 8);
  }
}

/// libtorch calls the C library for doubles, and so does this function.
void normal_double(const RandomFill& fill, const uint32_t* words, double* out, size_t groups) {
  const auto draw = [&](size_t i) {
    const uint64_t bits = uint64_t{words[2 * i]} << 32 | words[2 * i + 1];
    return static_cast<double>(bits & ((uint64_t{1} << 53) - 1)) * 0x1p-53;
  };
  for (size_t g = 0; g < groups; ++g) {
    for (size_t i = 16 * g; i < 16 * g + 8; ++i) {
      const double radius = std::sqrt(-2 * std::log(1 - draw(i)));
      const double theta = 2.0f * std::numbers::pi * draw(i + 8);
      const double n1 = radius * std::cos(theta), n2 = radius * std::sin(theta);
      out[i] = fill.fused ? std::fma(n1, fill.b, fill.a) : n1 * fill.b + fill.a;
      out[i + 8] = fill.fused ? std::fma(n2, fill.b, fill.a) : n2 * fill.b + fill.a;
    }
  }
}

/// Rounds the values to T.
template <class T, class D>
HWY_INLINE hn::Vec<D> rounded(D d, hn::Vec<D> values) {
  T buffer[hn::MaxLanes(D())];
  store_values(d, values, buffer);
  return load_values(d, buffer);
}

template <class T>
HWY_INLINE void normal_by_table(const RandomFill& fill, const uint32_t* words, T* out, size_t groups) {
  const NormalTable<T>& table = NormalTable<T>::instance();
  const hn::CappedTag<float, 8> d;
  const auto mean = hn::Set(d, static_cast<float>(static_cast<T>(fill.a)));
  const auto deviation = hn::Set(d, static_cast<float>(static_cast<T>(fill.b)));
  const auto finish = [&](const float* radius, const float* factor, T* to) HWY_ATTR {
    const auto normal = rounded<T>(d, hn::Mul(hn::LoadU(d, radius), hn::LoadU(d, factor)));
    store_values(d, hn::Add(rounded<T>(d, hn::Mul(normal, deviation)), mean), to);
  };
  for (size_t g = 0; g < groups; ++g, words += 16, out += 16) {
    float radius[8], cos[8], sin[8];
    for (size_t i = 0; i < 8; ++i) {
      radius[i] = table.radius[words[i] % table.size];
      cos[i] = table.cos[words[i + 8] % table.size];
      sin[i] = table.sin[words[i + 8] % table.size];
    }
    for (size_t i = 0; i < 8; i += hn::Lanes(d)) {
      finish(radius + i, cos + i, out + i);
      finish(radius + i, sin + i, out + i + 8);
    }
  }
}

void normal_half(const RandomFill& fill, const uint32_t* words, c10::Half* out, size_t groups) {
  normal_by_table(fill, words, out, groups);
}

void normal_bfloat16(const RandomFill& fill, const uint32_t* words, c10::BFloat16* out, size_t groups) {
  normal_by_table(fill, words, out, groups);
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace bellows::kernels {

HWY_EXPORT(has_fused_vectors_impl);
HWY_EXPORT(normal_float);
HWY_EXPORT(normal_double);
HWY_EXPORT(normal_half);
HWY_EXPORT(normal_bfloat16);

bool has_fused_vectors() {
  return HWY_DYNAMIC_DISPATCH(has_fused_vectors_impl)();
}

void convert_normal(const RandomFill& fill, const uint32_t* words, void* out, size_t groups) {
  switch (fill.dtype) {
    case c10::ScalarType::Double:
      return HWY_DYNAMIC_DISPATCH(normal_double)(fill, words, static_cast<double*>(out), groups);
    case c10::ScalarType::Half:
      return HWY_DYNAMIC_DISPATCH(normal_half)(fill, words, static_cast<c10::Half*>(out), groups);
    case c10::ScalarType::BFloat16:
      return HWY_DYNAMIC_DISPATCH(normal_bfloat16)(fill, words, static_cast<c10::BFloat16*>(out), groups);
    default:
      return HWY_DYNAMIC_DISPATCH(normal_float)(fill, words, static_cast<float*>(out), groups);
  }
}

}  // namespace bellows::kernels

#endif  // HWY_ONCE
