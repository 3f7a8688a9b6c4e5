// Products of small fp32 matrices that fit in the cache. This header is included once per instruction set.
#if defined(BELLOWS_KERNELS_MATMUL_TILES) == defined(HWY_TARGET_TOGGLE)
#ifdef BELLOWS_KERNELS_MATMUL_TILES
#undef BELLOWS_KERNELS_MATMUL_TILES
#else
#define BELLOWS_KERNELS_MATMUL_TILES
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// A matrix with strides in elements.
template <class T>
struct Matrix {
  T* data;
  int64_t row, column;
};

using Full = hn::ScalableTag<float>;

/// Rows of a tile: with two vectors a row, the sums and what they need fill the registers.
constexpr int tile_rows = HWY_TARGET <= HWY_AVX3 ? 12 : 6;

/// Columns of a tile: two vectors, one vector, or half a vector.
HWY_INLINE int64_t tile_width(int64_t columns_left) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Full()));
  if (columns_left > lanes) return 2 * lanes;
  return columns_left * 2 > lanes || lanes <= 4 ? lanes : lanes / 2;
}

/// Loads the lanes of `some`, which are the first `count` ones. The others are 0.
template <class D>
HWY_INLINE hn::Vec<D> load_first(D d, hn::Mask<D> some, int64_t count, const float* HWY_RESTRICT from) {
#if HWY_TARGET <= HWY_AVX2
  (void)count;
  return hn::MaskedLoad(some, d, from);
#else  // MaskedLoad() loads a whole vector, which must be aligned.
  (void)some;
  HWY_ALIGN float lanes[hn::MaxLanes(d)] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = from[i];
  return hn::Load(d, lanes);
#endif
}

/// Computes `rows` × `vectors` vectors of a product.
/// Params: b       – inner × width, rows at distance b_row
///         columns – number of columns to store, at most the width
///         adds    – whether to add to the result
template <int rows, int vectors, class D>
HWY_INLINE void compute_tile(D d, Matrix<const float> a, int64_t inner, const float* HWY_RESTRICT b, int64_t b_row,
                             float factor, bool adds, float* HWY_RESTRICT c, int64_t c_row, int64_t columns) {
  hn::Vec<D> sums[rows][vectors];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[r][v] = hn::Zero(d);
  }
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* HWY_RESTRICT from = a.data;
  for (int64_t k = 0; k < inner; ++k, from += a.column, b += b_row) {
    hn::Vec<D> right[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) right[v] = hn::LoadU(d, b + v * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const auto left = hn::Set(d, from[r * a.row]);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[r][v] = hn::MulAdd(left, right[v], sums[r][v]);
    }
  }
  const auto scale = hn::Set(d, factor);
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      float* const to = c + r * c_row + v * lanes;
      const int64_t count = columns - v * lanes;
      if (count >= lanes) {
        const auto value = adds ? hn::MulAdd(scale, sums[r][v], hn::LoadU(d, to)) : hn::Mul(scale, sums[r][v]);
        hn::StoreU(value, d, to);
      } else if (count > 0) {
        const auto some = hn::FirstN(d, static_cast<size_t>(count));
        const auto value =
            adds ? hn::MulAdd(scale, sums[r][v], load_first(d, some, count, to)) : hn::Mul(scale, sums[r][v]);
        hn::BlendedStore(value, some, d, to);
      }
    }
  }
}

/// Copies `width` columns to rows of `width` values; columns that do not exist are 0.
HWY_INLINE void pack_columns(Matrix<const float> b, int64_t inner, int64_t columns, int64_t width,
                             float* HWY_RESTRICT to) {
  if (columns < width) std::fill_n(to, inner * width, 0.0F);
  int64_t column = 0;
#if HWY_TARGET != HWY_SCALAR  // which has vectors of one value
  const hn::FixedTag<float, 4> d;
  for (; b.row == 1 && column + 4 <= columns; column += 4) {
    const float* from = b.data + column * b.column;
    int64_t k = 0;
    for (; k + 4 <= inner; k += 4) {
      const auto r0 = hn::LoadU(d, from + k), r1 = hn::LoadU(d, from + b.column + k),
                 r2 = hn::LoadU(d, from + 2 * b.column + k), r3 = hn::LoadU(d, from + 3 * b.column + k);
      const auto even_low = hn::InterleaveLower(d, r0, r2), odd_low = hn::InterleaveLower(d, r1, r3),
                 even_high = hn::InterleaveUpper(d, r0, r2), odd_high = hn::InterleaveUpper(d, r1, r3);
      float* const block = to + k * width + column;
      hn::StoreU(hn::InterleaveLower(d, even_low, odd_low), d, block);
      hn::StoreU(hn::InterleaveUpper(d, even_low, odd_low), d, block + width);
      hn::StoreU(hn::InterleaveLower(d, even_high, odd_high), d, block + 2 * width);
      hn::StoreU(hn::InterleaveUpper(d, even_high, odd_high), d, block + 3 * width);
    }
    for (; k < inner; ++k) {
      for (int64_t i = 0; i < 4; ++i) to[k * width + column + i] = from[i * b.column + k];
    }
  }
#endif
  for (int64_t k = 0; k < inner; ++k) {
    for (int64_t i = column; i < columns; ++i) to[k * width + i] = b.data[k * b.row + i * b.column];
  }
}

/// A right-hand matrix whose tiles can be read. Columns that are not adjacent, or do not fill a tile, are in `packed`.
struct Tiles {
  Matrix<const float> plain;
  int64_t inner, columns;
  const float* packed;
  bool padded = false;  ///< the rows of `plain` have padded_columns()

  HWY_INLINE bool is_packed(int64_t left, int64_t width) const {
    return plain.column != 1 || (left < width && !padded);
  }
};

/// Number of columns of a row in which all tiles are complete.
HWY_INLINE int64_t padded_columns(int64_t columns) {
  const auto width = 2 * static_cast<int64_t>(hn::Lanes(Full()));
  return (columns + width - 1) / width * width;
}

/// Number of floats that make_tiles() may write.
HWY_INLINE int64_t tiles_size(int64_t inner, int64_t columns) {
  return inner * (columns + 2 * static_cast<int64_t>(hn::Lanes(Full())));
}

HWY_INLINE Tiles make_tiles(Matrix<const float> b, int64_t inner, int64_t columns, float* buffer) {
  const Tiles made{b, inner, columns, buffer};
  for (int64_t column = 0; column < columns;) {
    const int64_t left = columns - column, width = tile_width(left);
    if (made.is_packed(left, width)) {
      const Matrix<const float> part{b.data + column * b.column, b.row, b.column};
      pack_columns(part, inner, std::min(left, width), width, buffer + column * inner);
    }
    column += width;
  }
  return made;
}

/// Where a product goes, and how.
struct Target {
  float factor;
  bool adds;  ///< to the values that are there
  float* data;
  int64_t row;
  bool padded = false;  ///< rows have padded_columns(), and values after the last column may be written
};

/// Computes some rows of c = factor · a · b. Rows are the outer loop, so that they are written in order.
template <int rows>
HWY_NOINLINE void multiply_rows(Matrix<const float> a, const Tiles& b, const Target& c) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Full()));
  for (int64_t column = 0; column < b.columns;) {
    const int64_t left = b.columns - column, width = tile_width(left);
    const int64_t count = c.padded ? width : std::min(left, width);
    const bool packed = b.is_packed(left, width);
    const float* const from = packed ? b.packed + column * b.inner : b.plain.data + column;
    const int64_t b_row = packed ? width : b.plain.row;
    float* const to = c.data + column;
    if (width > lanes)
      compute_tile<rows, 2>(Full(), a, b.inner, from, b_row, c.factor, c.adds, to, c.row, count);
    else if (width == lanes)
      compute_tile<rows, 1>(Full(), a, b.inner, from, b_row, c.factor, c.adds, to, c.row, count);
    else if constexpr (hn::MaxLanes(Full()) > 4)
      compute_tile<rows, 1>(hn::Half<Full>(), a, b.inner, from, b_row, c.factor, c.adds, to, c.row, count);
    column += width;
  }
}

/// Computes c = factor · a · b, or adds it to c.
HWY_INLINE void multiply(Matrix<const float> a, int64_t rows, const Tiles& b, const Target& c) {
  int64_t row = 0;
  const auto take = [&](auto count) HWY_ATTR {
    for (; row + count <= rows; row += count) {
      multiply_rows<decltype(count)::value>({a.data + row * a.row, a.row, a.column}, b,
                                            {c.factor, c.adds, c.data + row * c.row, c.row, c.padded});
    }
  };
  take(std::integral_constant<int, tile_rows>());
  if constexpr (tile_rows > 8) take(std::integral_constant<int, 8>());
  take(std::integral_constant<int, 4>());
  take(std::integral_constant<int, 2>());
  take(std::integral_constant<int, 1>());
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BELLOWS_KERNELS_MATMUL_TILES
