#include "bellows/kernels/cpu/int8_tile.h"

#include "bellows/kernels/int8_linear.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace bellows::kernels {

namespace {

/// For processors without VNNI. Layers do not run on them (has_fast_int8_linear()), but tests do.
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
#endif
  plain_tile(x, x_row, rows, panel, steps, sums);
}

}  // namespace bellows::kernels
