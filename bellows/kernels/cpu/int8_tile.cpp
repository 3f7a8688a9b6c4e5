#include "bellows/kernels/cpu/int8_tile.h"

#include "bellows/kernels/int8_linear.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>

namespace bellows::kernels {

namespace {

/// For processors without AVX2.
void plain_tile(const uint8_t* x, int64_t x_row, int64_t rows, const int8_t* panel, int64_t steps, int32_t* sums) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < Int8Panel::columns; ++column) {
      int32_t sum = 0;
      for (int64_t k = 0; k < steps * Int8Panel::group; ++k) {
        const int64_t step = k / Int8Panel::group, within = k % Int8Panel::group;
        sum += x[row * x_row + k] * panel[step * Int8Panel::step_bytes + column * Int8Panel::group + within];
      }
      sums[row * Int8Panel::columns + column] = sum;
    }
  }
}

#ifdef __x86_64__

#define BELLOWS_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))

/// Four values of a row of x for all columns.
BELLOWS_VNNI inline __m512i four_values(const uint8_t* from) {
  return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(from));
}

template <int rows>
BELLOWS_VNNI void vnni_tile(const uint8_t* x, int64_t x_row, const int8_t* panel, int64_t steps, int32_t* sums) {
  // The processor's own prefetchers stop at the end of a page. This distance is the fastest of those from 1 to 8 KiB.
  constexpr int64_t ahead = 8192;
  __m512i left[rows], right[rows];
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row) left[row] = right[row] = _mm512_setzero_si512();
  for (int64_t step = 0; step < steps; ++step) {
    const int8_t* const from = panel + step * Int8Panel::step_bytes;
    _mm_prefetch(from + ahead, _MM_HINT_T1);
    _mm_prefetch(from + ahead + 64, _MM_HINT_T1);
    const __m512i first = _mm512_load_si512(from), second = _mm512_load_si512(from + 64);
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
      const __m512i four = four_values(x + row * x_row + step * Int8Panel::group);
      left[row] = _mm512_dpbusd_epi32(left[row], four, first);
      right[row] = _mm512_dpbusd_epi32(right[row], four, second);
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row) {
    _mm512_store_si512(sums + row * Int8Panel::columns, left[row]);
    _mm512_store_si512(sums + row * Int8Panel::columns + 16, right[row]);
  }
}

using VnniTile = void (*)(const uint8_t*, int64_t, const int8_t*, int64_t, int32_t*);
constexpr VnniTile vnni_tiles[int8_tile_rows] = {
    vnni_tile<1>, vnni_tile<2>, vnni_tile<3>,  vnni_tile<4>,  vnni_tile<5>,  vnni_tile<6>,  vnni_tile<7>,
    vnni_tile<8>, vnni_tile<9>, vnni_tile<10>, vnni_tile<11>, vnni_tile<12>, vnni_tile<13>, vnni_tile<14>};

#define BELLOWS_AVX2 __attribute__((target("avx2")))

/// Sums of `rows` rows for 16 columns. The values are widened to 16 bits, because sums of 8-bit products (vpmaddubsw)
/// saturate at 16 bits.
template <int rows>
BELLOWS_AVX2 void avx2_half_tile(const uint8_t* x, int64_t x_row, const int8_t* panel, int64_t steps, int32_t* sums) {
  constexpr int vectors = 4;  // of four columns, each with two sums
  __m256i sum[rows][vectors];
#pragma GCC unroll 4
  for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sum[row][v] = _mm256_setzero_si256();
  }
  for (int64_t step = 0; step < steps; ++step) {
    __m256i four[rows];
#pragma GCC unroll 4
    for (int row = 0; row < rows; ++row) {
      const auto* const from = reinterpret_cast<const int32_t*>(x + row * x_row + step * Int8Panel::group);
      four[row] = _mm256_broadcastq_epi64(_mm_cvtepu8_epi16(_mm_loadu_si32(from)));
    }
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      const auto* const from = reinterpret_cast<const __m128i*>(panel + step * Int8Panel::step_bytes) + v;
      const __m256i weight = _mm256_cvtepi8_epi16(_mm_load_si128(from));
#pragma GCC unroll 4
      for (int row = 0; row < rows; ++row)
        sum[row][v] = _mm256_add_epi32(sum[row][v], _mm256_madd_epi16(four[row], weight));
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v += 2) {
      constexpr int in_order = 0xD8;  // the halves of the two vectors are interleaved
      const __m256i both = _mm256_hadd_epi32(sum[row][v], sum[row][v + 1]);
      auto* const to = reinterpret_cast<__m256i*>(sums + row * Int8Panel::columns + 4 * v);
      _mm256_store_si256(to, _mm256_permute4x64_epi64(both, in_order));
    }
  }
}

void avx2_tile(const uint8_t* x, int64_t x_row, int64_t rows, const int8_t* panel, int64_t steps, int32_t* sums) {
  constexpr int64_t most = 3;  // whose sums fit in 16 registers
  using HalfTile = void (*)(const uint8_t*, int64_t, const int8_t*, int64_t, int32_t*);
  constexpr HalfTile half_tiles[most] = {avx2_half_tile<1>, avx2_half_tile<2>, avx2_half_tile<3>};
  constexpr int64_t half = Int8Panel::columns / 2;
  for (int64_t first = 0; first < rows; first += most) {
    const HalfTile half_tile = half_tiles[std::min(most, rows - first) - 1];
    for (int64_t column = 0; column < Int8Panel::columns; column += half)
      half_tile(x + first * x_row, x_row, panel + column * Int8Panel::group, steps,
                sums + first * Int8Panel::columns + column);
  }
}

bool has_vnni() {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

#else

bool has_vnni() {
  return false;
}

#endif

}  // namespace

bool has_fast_int8_linear() {
  static const bool has = has_vnni();
  return has;
}

void int8_tile(const uint8_t* x, int64_t x_row, int64_t rows, const int8_t* panel, int64_t steps, int32_t* sums) {
#ifdef __x86_64__
  if (has_fast_int8_linear()) return vnni_tiles[rows - 1](x, x_row, panel, steps, sums);
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return avx2_tile(x, x_row, rows, panel, steps, sums);
#endif
  plain_tile(x, x_row, rows, panel, steps, sums);
}

}  // namespace bellows::kernels
