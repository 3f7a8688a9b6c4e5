// Matmuls with a packed right-hand matrix, compiled once per instruction set that Highway supports; the best one is
// chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/packed_matmul.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/highway.h>
// clang-format on

#include <hwy/cache_control.h>

#include <algorithm>

#include "bellows/kernels/cpu/values_impl.h"
#include "bellows/kernels/packed_matmul.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

/// Columns of a panel: 128 bytes, so that packed matrices are the same for all instruction sets.
template <class A>
constexpr int64_t panel_columns = 128 / sizeof(A);

/// Rows of a tile. With two vectors per row, the sums and the operands fill the registers.
constexpr int tile_rows = HWY_TARGET <= HWY_AVX3 ? 12 : 6;

/// Calls `use(count, row)` for tiles that together cover `rows` rows. `count` is an integral_constant, the number of rows
/// from `row` on.
template <class F>
void for_each_tile(int64_t rows, const F& use) {
  int64_t row = 0;
  const auto take = [&](auto count) {
    for (; rows - row >= count; row += count) use(count, row);
  };
  take(std::integral_constant<int, tile_rows>());
  if constexpr (tile_rows > 8) take(std::integral_constant<int, 8>());
  take(std::integral_constant<int, 4>());
  take(std::integral_constant<int, 2>());
  take(std::integral_constant<int, 1>());
}

/// Part of a matmul: the rows of one tile, the columns of one panel, and a part of the inner dimension. The sums of a
/// part are in the result until the next part continues them.
template <class T>
struct Tile {
  const Accumulate<T>* left;  ///< packed: [inner, rows]
  int64_t inner;
  const Accumulate<T>* panel;
  const T* begun;  ///< the sums of the parts before, with the strides of the result; null in the first part
  const T* bias;   ///< of the panel's columns; null if there is none
  const T* added;  ///< with the strides of the result; null if there is none
  T* result;
  int64_t result_row, columns;
};

template <int rows, class T>
HWY_NOINLINE void multiply_tile(const Tile<T>& args) {
  using A = Accumulate<T>;
  const hn::CappedTag<A, panel_columns<A> / 2> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t first = 0; first < args.columns; first += 2 * lanes) {
    hn::Vec<decltype(d)> sums[rows][2];
    // Calls `use` with the type of the memory access for each half.
    const auto for_each_half = [&](const auto& use) HWY_ATTR {
#pragma GCC unroll 2
      for (int64_t v = 0; v < 2; ++v) {
        const int64_t column = first + v * lanes, left_over = args.columns - column;
        if (left_over <= 0) break;
        left_over >= lanes ? use(Whole{}, v, column) : use(Part{static_cast<size_t>(left_over)}, v, column);
      }
    };
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) sums[r][0] = sums[r][1] = hn::Zero(d);
    if (args.begun) {
      for_each_half([&](const auto& part, int64_t v, int64_t column) HWY_ATTR {
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) sums[r][v] = part.load(d, args.begun + r * args.result_row + column);
      });
    }
    // Without prefetching, a matmul with 14 rows took 1.2 times as long.
    constexpr int64_t prefetched = 16;
    const A* HWY_RESTRICT left = args.left;
    const A* HWY_RESTRICT right = args.panel + first;
    for (int64_t k = 0; k < args.inner; ++k, left += rows, right += panel_columns<A>) {
      hwy::Prefetch(right + prefetched * panel_columns<A>);
      hwy::Prefetch(right + prefetched * panel_columns<A> + lanes);
      const auto right0 = hn::LoadU(d, right), right1 = hn::LoadU(d, right + lanes);
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const auto factor = hn::Set(d, left[r]);
        sums[r][0] = hn::MulAdd(factor, right0, sums[r][0]);
        sums[r][1] = hn::MulAdd(factor, right1, sums[r][1]);
      }
    }
    for_each_half([&](const auto& part, int64_t v, int64_t column) HWY_ATTR {
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        auto sum = sums[r][v];
        if (args.bias) sum = hn::Add(sum, part.load(d, args.bias + column));
        if (args.added) sum = hn::Add(sum, part.load(d, args.added + r * args.result_row + column));
        part.store(d, sum, args.result + r * args.result_row + column);
      }
    });
  }
}

template <class T>
void multiply_panel(const PackedMatmul& args, int64_t first, int64_t last, int64_t panel) {
  using A = Accumulate<T>;
  const int64_t column = panel * panel_columns<A>, inner = last - first;
  const bool ends = last == args.inner;
  for_each_tile(args.rows, [&](auto count, int64_t row) {
    const int64_t place = row * args.columns + column;
    T* const result = static_cast<T*>(args.result) + place;
    multiply_tile<count.value, T>(
        {.left = static_cast<const A*>(args.scratch) + row * inner,
         .inner = inner,
         .panel = static_cast<const A*>(args.packed) + column * args.inner + first * panel_columns<A>,
         .begun = first == 0 ? nullptr : result,
         .bias = ends && args.bias ? static_cast<const T*>(args.bias) + column : nullptr,
         .added = ends && args.added ? static_cast<const T*>(args.added) + place : nullptr,
         .result = result,
         .result_row = args.columns,
         .columns = std::min(args.columns - column, panel_columns<A>)});
  });
}

/// Multiplies the part of the left matrix that packed_matmul_left() has packed.
/// Params: first, last – of the inner dimension
///         begin, end – of the panels
void packed_matmul_panels(const PackedMatmul& args, int64_t first, int64_t last, int64_t begin, int64_t end) {
  with_values(args.dtype, [&](auto* type) {
    for (int64_t panel = begin; panel < end; ++panel)
      multiply_panel<std::remove_pointer_t<decltype(type)>>(args, first, last, panel);
  });
}

/// Copies columns begin to end of the part of the left matrix that starts at column `first` to the scratch memory, tile
/// by tile, in the accumulation type. Read in place, rows whose stride is a multiple of 4 KB would push each other out of
/// the first-level cache.
void packed_matmul_left(const PackedMatmul& args, int64_t first, int64_t last, int64_t begin, int64_t end) {
  with_values(args.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using A = Accumulate<T>;
    for_each_tile(args.rows, [&](auto count, int64_t row) {
      A* const tile = static_cast<A*>(args.scratch) + row * (last - first);
      const T* const from = static_cast<const T*>(args.left) + row * args.left_row + first * args.left_column;
      constexpr int64_t adjacent = 16;  // a cache line of floats
      for (int64_t i = begin; i < end; i += adjacent) {
        const int64_t stop = std::min(i + adjacent, end);
        for (int64_t r = 0; r < count; ++r) {
          for (int64_t k = i; k < stop; ++k)
            tile[k * count + r] = static_cast<A>(from[r * args.left_row + k * args.left_column]);
        }
      }
    });
  });
}

void pack_panels(const MatrixToPack& args, int64_t begin, int64_t end) {
  with_values(args.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using A = Accumulate<T>;
    constexpr int64_t width = panel_columns<A>;
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t column = panel * width, count = std::min(args.columns - column, width);
      const T* const from = static_cast<const T*>(args.from) + column * args.column;
      A* const to = static_cast<A*>(args.to) + column * args.inner;
      if (count < width) std::fill_n(to, width * args.inner, A(0));
      if (args.column == 1) {
        for (int64_t k = 0; k < args.inner; ++k) {
          for (int64_t i = 0; i < count; ++i) to[k * width + i] = static_cast<A>(from[k * args.row + i]);
        }
        continue;
      }
      constexpr int64_t block = 16;  // reads whole cache lines of columns that are adjacent in memory
      for (int64_t first = 0; first < args.inner; first += block) {
        const int64_t last = std::min(first + block, args.inner);
        for (int64_t i = 0; i < count; ++i) {
          for (int64_t k = first; k < last; ++k)
            to[k * width + i] = static_cast<A>(from[k * args.row + i * args.column]);
        }
      }
    }
  });
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "bellows/kernels/parallel.h"

namespace bellows::kernels {

HWY_EXPORT(packed_matmul_panels);
HWY_EXPORT(packed_matmul_left);
HWY_EXPORT(pack_panels);

namespace {

size_t accumulation_bytes(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Double ? sizeof(double) : sizeof(float);
}
int64_t panel_width(c10::ScalarType dtype) {
  return static_cast<int64_t>(128 / accumulation_bytes(dtype));
}
int64_t panels(c10::ScalarType dtype, int64_t columns) {
  return (columns + panel_width(dtype) - 1) / panel_width(dtype);
}

/// The part of the left matrix that is packed at once. It stays in the second-level cache while all panels are multiplied
/// with it.
struct LeftPart {
  int64_t rows, inner;
};

LeftPart left_part(c10::ScalarType dtype, int64_t rows, int64_t inner) {
  constexpr int64_t cached_bytes = 512 << 10, whole_tiles = 12, divided_bytes = 3072;
  const auto bytes = static_cast<int64_t>(accumulation_bytes(dtype));
  // In lower precision, the result cannot hold the sums of a part.
  const bool accumulates = c10::elementSize(dtype) == accumulation_bytes(dtype);
  if (accumulates && rows * inner * bytes > cached_bytes) inner = std::min(inner, divided_bytes / bytes);
  const int64_t fit = cached_bytes / std::max<int64_t>(1, inner * bytes) / whole_tiles * whole_tiles;
  return {std::min(rows, std::max(whole_tiles, fit)), inner};
}

}  // namespace

size_t packed_bytes(c10::ScalarType dtype, int64_t inner, int64_t columns) {
  return static_cast<size_t>(panels(dtype, columns) * panel_width(dtype) * inner) * accumulation_bytes(dtype);
}

size_t packed_matmul_scratch_bytes(c10::ScalarType dtype, int64_t rows, int64_t inner) {
  const LeftPart part = left_part(dtype, rows, inner);
  return static_cast<size_t>(part.rows * part.inner) * accumulation_bytes(dtype);
}

void pack_matrix(const MatrixToPack& args) {
  constexpr int64_t task_elements = 1 << 15;
  const int64_t grain =
      std::max<int64_t>(1, task_elements / std::max<int64_t>(1, panel_width(args.dtype) * args.inner));
  parallel_ranges(panels(args.dtype, args.columns), grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(pack_panels)(args, begin, end);
  });
}

namespace {

/// Multiplies columns first to last of the left matrix, whose rows all fit into the scratch memory.
void multiply_part(const PackedMatmul& args, int64_t first, int64_t last) {
  constexpr int64_t task_operations = 1'000'000, task_elements = 1 << 14;  // about 10 µs
  parallel_ranges(last - first, std::max<int64_t>(1, task_elements / args.rows), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(packed_matmul_left)(args, first, last, begin, end);
  });
  const int64_t operations = std::max<int64_t>(1, 2 * args.rows * (last - first) * panel_width(args.dtype));
  parallel_ranges(panels(args.dtype, args.columns), (task_operations + operations - 1) / operations,
                  [&](int64_t begin, int64_t end) {
                    HWY_DYNAMIC_DISPATCH(packed_matmul_panels)(args, first, last, begin, end);
                  });
}

}  // namespace

void packed_matmul(const PackedMatmul& args) {
  const auto bytes = static_cast<int64_t>(c10::elementSize(args.dtype));
  const LeftPart most = left_part(args.dtype, args.rows, args.inner);
  for (int64_t row = 0; row < args.rows; row += most.rows) {
    PackedMatmul part = args;
    part.rows = std::min(most.rows, args.rows - row);
    part.left = static_cast<const char*>(args.left) + row * args.left_row * bytes;
    part.result = static_cast<char*>(args.result) + row * args.columns * bytes;
    if (args.added) part.added = static_cast<const char*>(args.added) + row * args.columns * bytes;
    for (int64_t k = 0; k < args.inner; k += most.inner) multiply_part(part, k, std::min(k + most.inner, args.inner));
  }
}

}  // namespace bellows::kernels

#endif  // HWY_ONCE
