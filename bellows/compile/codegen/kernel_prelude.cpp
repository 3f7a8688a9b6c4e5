#include "bellows/compile/codegen/kernel_prelude.h"

namespace bellows::compile_detail {
namespace {

// No includes, so that a source compiles in a fifth of a second. All functions are free of branches, so that loops over
// them are vectorized. Polynomials: exp, log and tanh as in Cephes (S. Moshier), erf by N. Juffa;
// tests/compile/codegen_test.cpp checks the errors.
constexpr std::string_view prelude_text =
    R"(typedef signed char i8; typedef unsigned char u8; typedef short i16; typedef unsigned short u16;
typedef int i32; typedef unsigned u32; typedef long i64; typedef unsigned long u64;
#define INLINE static inline __attribute__((always_inline))
#define LIBM(name) extern "C" double name(double); extern "C" float name##f(float); \
  INLINE double k_##name(double x) { return name(x); } INLINE float k_##name(float x) { return name##f(x); }
#define LIBM_DOUBLE(name) extern "C" double name(double); INLINE double k_##name(double x) { return name(x); }
#define LIBM2(name) extern "C" double name(double, double); extern "C" float name##f(float, float); \
  INLINE double k_##name(double x, double y) { return name(x, y); } \
  INLINE float k_##name(float x, float y) { return name##f(x, y); }
#define BUILTIN(name, builtin) INLINE double k_##name(double x) { return __builtin_##builtin(x); } \
  INLINE float k_##name(float x) { return __builtin_##builtin##f(x); }
LIBM(sin) LIBM(cos) LIBM(tan) LIBM(asin) LIBM(acos) LIBM(atan) LIBM(sinh) LIBM(cosh) LIBM(erfc) LIBM(exp2)
LIBM_DOUBLE(expm1) LIBM_DOUBLE(log1p) LIBM_DOUBLE(erf)
LIBM(log2) LIBM(log10) LIBM2(pow) LIBM2(fmod) LIBM2(atan2)
BUILTIN(floor, floor) BUILTIN(ceil, ceil) BUILTIN(round, rint) BUILTIN(trunc, trunc) BUILTIN(sqrt, sqrt) BUILTIN(abs, fabs)
template <class T> INLINE T k_abs(T x) { return x < 0 ? -x : x; }
template <class T> INLINE T k_sign(T x) { return (T)((0 < x) - (x < 0)); }
template <class T> INLINE T k_maximum(T a, T b) { return a > b || a != a ? a : b; }
template <class T> INLINE T k_minimum(T a, T b) { return a < b || a != a ? a : b; }
INLINE float f32_of(i32 x) { return __builtin_bit_cast(float, x); }
INLINE i32 bits_of(float x) { return __builtin_bit_cast(i32, x); }
INLINE float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

INLINE float from_bf16(u16 x) { return f32_of((i32)((u32)x << 16)); }
INLINE u16 to_bf16(float x) {
  const u32 u = (u32)bits_of(x), rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return x != x ? (u16)0x7fc0 : (u16)rounded;
}
INLINE float from_f16(u16 h) {
  const u32 sign = (u32)(h & 0x8000) << 16, body = (u32)(h & 0x7fff) << 13;
  const float scaled = f32_of((i32)body) * 0x1p112f;  // subnormal halves too
  const u32 u = (u32)bits_of(scaled) | (body >= 0x0f800000u ? 0x7f800000u : 0u);
  return f32_of((i32)(u | sign));
}
INLINE u16 to_f16(float x) {
  const u32 u = (u32)bits_of(x), sign = u & 0x80000000u, body = u ^ sign;
  const u32 small = (u32)bits_of(f32_of((i32)body) + 0.5f) - 0x3f000000u;  // the addition rounds to a subnormal half
  const u32 normal = (body - 0x38000000u + 0xfffu + ((body >> 13) & 1u)) >> 13;
  u32 h = body < 0x38800000u ? small : normal;
  h = body >= 0x47800000u ? 0x7c00u : h;
  h = body > 0x7f800000u ? 0x7e00u : h;
  return (u16)(h | (sign >> 16));
}

INLINE double f64_of(i64 x) { return __builtin_bit_cast(double, x); }
INLINE i64 bits_of(double x) { return __builtin_bit_cast(i64, x); }

INLINE double k_exp(double x) {
  const double above = x > -746. ? x : -746., c = above < 710. ? above : 710.;
  const double n = __builtin_rint(c * 1.4426950408889634073599);
  double r = c - n * 6.93145751953125e-1;
  r = r - n * 1.42860682030941723212e-6;
  const double z = r * r;
  const double p = r * ((1.26177193074810590878e-4 * z + 3.02994407707441961300e-2) * z + 9.99999999999999999910e-1);
  const double q = ((3.00198505138664455042e-6 * z + 2.52448340349684104192e-3) * z + 2.27265548208155028766e-1) * z +
                   2.00000000000000000005;
  const i32 k = (i32)n, half = k >> 1;
  const double y = (1. + 2. * (p / (q - p))) * f64_of((i64)(half + 1023) << 52) * f64_of((i64)(k - half + 1023) << 52);
  return x != x ? x : y;
}
INLINE double k_log(double x) {
  const bool tiny = x < 0x1p-1022;
  const i64 u = bits_of(tiny ? x * 0x1p54 : x);
  const i64 shifted = (i64)((u64)u - 0x3fe6a09e00000000u);  // the mantissa lies in [sqrt(1/2), sqrt(2))
  const double e = (double)((i32)(shifted >> 52) - (tiny ? 54 : 0));
  const double m = f64_of((shifted & 0x000fffffffffffff) + 0x3fe6a09e00000000) - 1., z = m * m;
  double p = 1.01875663804580931796e-4 * m + 4.97494994976747001425e-1;
  p = p * m + 4.70579119878881725854;
  p = p * m + 14.4989225341610930846;
  p = p * m + 17.9368678507819816313;
  p = p * m + 7.70838733755885391666;
  double q = m + 11.2873587189167450590;
  q = q * m + 45.2279145837532221105;
  q = q * m + 82.9875266912776603211;
  q = q * m + 71.1544750618563894466;
  q = q * m + 23.1251620126765340583;
  double y = m * (z * p / q) - e * 2.121944400546905827679e-4;
  y = y - 0.5 * z;
  y = m + y + e * 0.693359375;
  y = x == __builtin_inf() ? x : y;
  y = x == 0. ? -__builtin_inf() : y;
  return x < 0. || x != x ? __builtin_nan("") : y;
}
INLINE double k_tanh(double x) {
  const double a = k_abs(x), z = x * x;
  const double p = (-9.64399179425052238628e-1 * z - 99.2877231001918586564) * z - 1614.68768441708447952;
  const double q = ((z + 112.811678491632931402) * z + 2235.48839060100448583) * z + 4844.06305325125486048;
  const double big = 1. - 2. / (k_exp(2. * a) + 1.);
  return __builtin_copysign(a < 0.625 ? x + x * z * (p / q) : big, x);
}

INLINE float k_exp(float x) {
  const float above = x > -104.f ? x : -104.f, c = above < 89.f ? above : 89.f;  // no NaN: it has no integer
  const float n = __builtin_rintf(c * 1.44269504088896341f);
  float r = fma_(n, -0.693145751953125f, c);
  r = fma_(n, -1.428606765330187045e-6f, r);
  float p = 1.9875691500e-4f;
  p = fma_(p, r, 1.3981999507e-3f);
  p = fma_(p, r, 8.3334519073e-3f);
  p = fma_(p, r, 4.1665795894e-2f);
  p = fma_(p, r, 1.6666665459e-1f);
  p = fma_(p, r, 5.0000001201e-1f);
  p = fma_(p, r * r, r) + 1.f;
  const i32 k = (i32)n, half = k >> 1;
  const float y = p * f32_of((half + 127) << 23) * f32_of((k - half + 127) << 23);
  return x != x ? x : y;
}
INLINE float k_log(float x) {
  const bool tiny = x < 0x1p-126f;
  const i32 u = bits_of(tiny ? x * 0x1p25f : x);
  const i32 shifted = (i32)((u32)u - 0x3f3504f3u);  // the mantissa lies in [sqrt(1/2), sqrt(2))
  const float e = (float)((shifted >> 23) - (tiny ? 25 : 0));
  const float m = f32_of((shifted & 0x007fffff) + 0x3f3504f3) - 1.f, z = m * m;
  float p = 7.0376836292e-2f;
  p = fma_(p, m, -1.1514610310e-1f);
  p = fma_(p, m, 1.1676998740e-1f);
  p = fma_(p, m, -1.2420140846e-1f);
  p = fma_(p, m, 1.4249322787e-1f);
  p = fma_(p, m, -1.6668057665e-1f);
  p = fma_(p, m, 2.0000714765e-1f);
  p = fma_(p, m, -2.4999993993e-1f);
  p = fma_(p, m, 3.3333331174e-1f);
  float y = p * m * z;
  y = fma_(e, -2.12194440e-4f, y);
  y = fma_(z, -0.5f, y);
  y = fma_(e, 0.693359375f, m + y);
  y = x == __builtin_inff() ? x : y;
  y = x == 0.f ? -__builtin_inff() : y;
  return x < 0.f || x != x ? __builtin_nanf("") : y;
}
INLINE float k_expm1(float x) {
  float p = 1.9875691500e-4f;
  p = fma_(p, x, 1.3981999507e-3f);
  p = fma_(p, x, 8.3334519073e-3f);
  p = fma_(p, x, 4.1665795894e-2f);
  p = fma_(p, x, 1.6666665459e-1f);
  p = fma_(p, x, 5.0000001201e-1f);
  p = fma_(p, x * x, x);
  const float y = k_exp(x) - 1.f;
  return k_abs(x) < 0.35f ? p : y;
}
INLINE float k_log1p(float x) {
  const float u = 1.f + x, y = k_log(u), correction = ((u - 1.f) - x) / u;
  return u == __builtin_inff() || u <= 0.f ? y : u == 1.f ? x : y - correction;
}
INLINE float k_tanh(float x) {
  const float a = k_abs(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = fma_(p, z, 2.06390887954e-2f);
  p = fma_(p, z, -5.37397155531e-2f);
  p = fma_(p, z, 1.33314422036e-1f);
  p = fma_(p, z, -3.33332819422e-1f);
  p = fma_(p * z, x, x);
  const float big = 1.f - 2.f / (k_exp(2.f * a) + 1.f);
  return a < 0.625f ? p : __builtin_copysignf(big, x);
}
INLINE float k_erf(float x) {
  const float t = k_abs(x), s = x * x;
  float r = fma_(-1.72853470e-5f, t, 3.83197126e-4f);
  const float u = fma_(-3.88396438e-3f, t, 2.42546219e-2f);
  r = fma_(r, s, u);
  r = fma_(r, t, -1.06777877e-1f);
  r = fma_(r, t, -6.34846687e-1f);
  r = fma_(r, t, -1.28717512e-1f);
  r = fma_(r, t, -t);
  r = __builtin_copysignf(1.f - k_exp(r), x);
  r = t > 4.f ? __builtin_copysignf(1.f, x) : r;
  float q = -5.96761703e-4f;
  q = fma_(q, s, 4.99119423e-3f);
  q = fma_(q, s, -2.67681349e-2f);
  q = fma_(q, s, 1.12819925e-1f);
  q = fma_(q, s, -3.76125336e-1f);
  q = fma_(q, s, 1.28379166e-1f);
  q = fma_(q, x, x);
  return t > 0.927734375f ? r : x != x ? x : q;
}
)";

}  // namespace

std::string_view kernel_prelude() {
  return prelude_text;
}

}  // namespace bellows::compile_detail
