// Matmuls with a packed right-hand matrix, compiled once per instruction set that Highway supports; the best one is
// chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/packed_matmul.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/highway.h>
// clang-format on

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

/// Part of a matmul: some rows of one panel.
template <class T>
struct PanelRows {
  const Accumulate<T>* left;
  int64_t left_row, left_column, inner;
  const Accumulate<T>* panel;
  const T* bias;  ///< of the panel's columns; null if there is none
  T* result;
  int64_t result_row, columns;
};

template <int rows, class T>
HWY_NOINLINE void multiply_rows(const PanelRows<T>& args) {
  using A = Accumulate<T>;
  const hn::CappedTag<A, panel_columns<A> / 2> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t first = 0; first < args.columns; first += 2 * lanes) {
    hn::Vec<decltype(d)> sums[rows][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) sums[r][0] = sums[r][1] = hn::Zero(d);
    const A* HWY_RESTRICT left = args.left;
    const A* HWY_RESTRICT right = args.panel + first;
    for (int64_t k = 0; k < args.inner; ++k, left += args.left_column, right += panel_columns<A>) {
      const auto right0 = hn::LoadU(d, right), right1 = hn::LoadU(d, right + lanes);
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const auto factor = hn::Set(d, left[r * args.left_row]);
        sums[r][0] = hn::MulAdd(factor, right0, sums[r][0]);
        sums[r][1] = hn::MulAdd(factor, right1, sums[r][1]);
      }
    }
    for (int64_t v = 0; v < 2; ++v) {
      const int64_t column = first + v * lanes, left_over = args.columns - column;
      if (left_over <= 0) break;
      const auto store = [&](const auto& part) HWY_ATTR {
        const auto bias = args.bias ? part.load(d, args.bias + column) : hn::Zero(d);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r)
          part.store(d, hn::Add(sums[r][v], bias), args.result + r * args.result_row + column);
      };
      left_over >= lanes ? store(Whole{}) : store(Part{static_cast<size_t>(left_over)});
    }
  }
}

template <class T>
void multiply_panel(PanelRows<T> args, int64_t rows) {
  const auto take = [&](auto count) HWY_ATTR {
    constexpr int taken = decltype(count)::value;
    for (; rows >= taken; rows -= taken) {
      multiply_rows<taken>(args);
      args.left += taken * args.left_row;
      args.result += taken * args.result_row;
    }
  };
  take(std::integral_constant<int, tile_rows>());
  if constexpr (tile_rows > 8) take(std::integral_constant<int, 8>());
  take(std::integral_constant<int, 4>());
  take(std::integral_constant<int, 2>());
  take(std::integral_constant<int, 1>());
}

/// Params: left – the left matrix in the accumulation type, with its strides in `args`
template <class T>
void multiply_panels(const PackedMatmul& args, const Accumulate<T>* left, int64_t begin, int64_t end) {
  using A = Accumulate<T>;
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t column = panel * panel_columns<A>;
    multiply_panel<T>({.left = left,
                       .left_row = args.left_row,
                       .left_column = args.left_column,
                       .inner = args.inner,
                       .panel = static_cast<const A*>(args.packed) + column * args.inner,
                       .bias = args.bias ? static_cast<const T*>(args.bias) + column : nullptr,
                       .result = static_cast<T*>(args.result) + column,
                       .result_row = args.columns,
                       .columns = std::min(args.columns - column, panel_columns<A>)},
                      args.rows);
  }
}

void packed_matmul_panels(const PackedMatmul& args, int64_t begin, int64_t end) {
  with_values(args.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    multiply_panels<T>(args, static_cast<const Accumulate<T>*>(args.left), begin, end);
  });
}

/// Copies the left matrix of a matmul in lower precision to the scratch memory, as floats.
void convert_left(PackedMatmul& args) {
  with_values(args.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    auto* to = static_cast<Accumulate<T>*>(args.scratch);
    const T* const from = static_cast<const T*>(args.left);
    for (int64_t row = 0; row < args.rows; ++row) {
      for (int64_t k = 0; k < args.inner; ++k)
        *to++ = static_cast<Accumulate<T>>(from[row * args.left_row + k * args.left_column]);
    }
  });
  args.left = args.scratch;
  args.left_row = args.inner;
  args.left_column = 1;
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
HWY_EXPORT(convert_left);
HWY_EXPORT(pack_panels);

namespace {

size_t accumulation_bytes(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Double ? sizeof(double) : sizeof(float);
}
bool is_converted(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::BFloat16 || dtype == c10::ScalarType::Half;
}
int64_t panel_width(c10::ScalarType dtype) {
  return static_cast<int64_t>(128 / accumulation_bytes(dtype));
}
int64_t panels(c10::ScalarType dtype, int64_t columns) {
  return (columns + panel_width(dtype) - 1) / panel_width(dtype);
}

}  // namespace

size_t packed_bytes(c10::ScalarType dtype, int64_t inner, int64_t columns) {
  return static_cast<size_t>(panels(dtype, columns) * panel_width(dtype) * inner) * accumulation_bytes(dtype);
}

size_t packed_matmul_scratch_bytes(c10::ScalarType dtype, int64_t rows, int64_t inner) {
  return is_converted(dtype) ? static_cast<size_t>(rows * inner) * sizeof(float) : 0;
}

void pack_matrix(const MatrixToPack& args) {
  constexpr int64_t task_elements = 1 << 15;
  const int64_t grain =
      std::max<int64_t>(1, task_elements / std::max<int64_t>(1, panel_width(args.dtype) * args.inner));
  parallel_ranges(panels(args.dtype, args.columns), grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(pack_panels)(args, begin, end);
  });
}

void packed_matmul(const PackedMatmul& args) {
  PackedMatmul converted = args;
  if (is_converted(args.dtype)) HWY_DYNAMIC_DISPATCH(convert_left)(converted);
  constexpr int64_t task_operations = 1'000'000;  // about 10 µs
  const int64_t operations = std::max<int64_t>(1, 2 * args.rows * args.inner * panel_width(args.dtype));
  parallel_ranges(panels(args.dtype, args.columns), (task_operations + operations - 1) / operations,
                  [&](int64_t begin, int64_t end) {
                    HWY_DYNAMIC_DISPATCH(packed_matmul_panels)(converted, begin, end);
                  });
}

}  // namespace bellows::kernels

#endif  // HWY_ONCE
