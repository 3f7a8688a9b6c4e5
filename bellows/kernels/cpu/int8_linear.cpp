// Linear layers of integers. Everything behind the sums is compiled once per instruction set that Highway supports; the best
// one is chosen at run time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/int8_linear.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "bellows/kernels/cpu/columns_impl.h"
#include "bellows/kernels/cpu/int8_tile.h"
#include "bellows/kernels/cpu/sigmoid_impl.h"
#include "bellows/kernels/int8_linear.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

/// At most 16 lanes, so that a panel consists of whole vectors.
using Int8Tag = hn::CappedTag<float, 16>;
using Int8Vector = hn::Vec<Int8Tag>;

/// tanh(x) is 2 · sigmoid(2x) − 1, but that loses digits near 0.
HWY_INLINE Int8Vector tanh_of(Int8Vector x) {
  const Int8Tag d;
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, x));
}

HWY_INLINE Int8Vector after_activation(Int8Step::Kind kind, Int8Vector x) {
  const Int8Tag d;
  const auto half = hn::Set(d, 0.5F);
  switch (kind) {
    case Int8Step::Kind::relu:
      return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
    case Int8Step::Kind::gelu:
      return hn::Mul(x, hn::MulAdd(erf_of(d, hn::Mul(x, hn::Set(d, static_cast<float>(M_SQRT1_2)))), half, half));
    case Int8Step::Kind::gelu_tanh: {
      const auto cubic = hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.044715F), hn::Set(d, 1));
      return hn::Mul(x, sigmoid_of(d, hn::Mul(hn::Mul(x, cubic), hn::Set(d, 1.5957691216F))));
    }
    case Int8Step::Kind::tanh:
      return tanh_of(x);
    case Int8Step::Kind::sigmoid:
      return sigmoid_of(d, x);
    default:
      return hn::Mul(x, sigmoid_of(d, x));
  }
}

/// Replaces the sums by fp32 values.
HWY_INLINE void scale_tile(const Int8Linear& args, const Int8Tile& tile, int32_t zero_point) {
  const Int8Tag d;
  const hn::RebindToSigned<Int8Tag> d32;
  const auto x_scale = hn::Set(d, *args.x_scale);
  const auto zero = hn::Set(d32, zero_point);
  for_columns(d, static_cast<size_t>(tile.columns), [&](auto lanes, size_t i) HWY_ATTR {
    const int64_t column = tile.first_column + static_cast<int64_t>(i);
    const auto scale = hn::Mul(x_scale, lanes.load(d, args.weight_scales + column));
    const auto correction = hn::Mul(zero, hn::LoadU(d32, tile.column_sums + i));
    const auto bias = args.bias ? lanes.load(d, args.bias + column) : hn::Zero(d);
    for (int64_t row = 0; row < tile.rows; ++row) {
      int32_t* const at = tile.sums + row * Int8Panel::columns + i;
      const auto value = hn::ConvertTo(d, hn::Sub(hn::LoadU(d32, at), correction));
      hn::StoreU(hn::Add(hn::Mul(value, scale), bias), d, reinterpret_cast<float*>(at));
    }
  });
}

HWY_INLINE void run_step(const Int8Linear& args, const Int8Tile& tile, const Int8Step& step) {
  const Int8Tag d;
  for (int64_t row = 0; row < tile.rows; ++row) {
    auto* const values = reinterpret_cast<float*>(tile.sums + row * Int8Panel::columns);
    const int64_t at = (tile.first_row + row) * args.columns + tile.first_column;
    for_columns(d, static_cast<size_t>(tile.columns), [&](auto lanes, size_t i) HWY_ATTR {
      const auto value = hn::LoadU(d, values + i);
      const auto now = step.kind == Int8Step::Kind::add ? hn::Add(value, lanes.load(d, step.added + at + i))
                                                        : after_activation(step.kind, value);
      hn::StoreU(now, d, values + i);
    });
  }
}

/// Stores as many of the bytes as there are columns.
template <class D8, class T>
HWY_INLINE void store_bytes(Whole, D8 d8, hn::Vec<D8> bytes, T* to) {
  hn::StoreU(bytes, d8, to);
}
template <class D8, class T>
HWY_INLINE void store_bytes(Part part, D8 d8, hn::Vec<D8> bytes, T* to) {
  T buffer[16];
  hn::StoreU(bytes, d8, buffer);
  std::copy_n(buffer, part.count, to);
}

template <class T>
HWY_INLINE void store_integers(const Int8Linear& args, const Int8Tile& tile) {
  const Int8Tag d;
  const hn::Rebind<T, Int8Tag> d8;
  const hn::RebindToSigned<Int8Tag> d32;
  const float lowest = std::is_signed_v<T> ? -128 : 0;
  const auto low = hn::Set(d, lowest), high = hn::Set(d, lowest + 255), inverse = hn::Set(d, 1.0F / *args.y_scale),
             zero = hn::Set(d, static_cast<float>(args.y_zero_point ? *args.y_zero_point : 0));
  for (int64_t row = 0; row < tile.rows; ++row) {
    const auto* const values = reinterpret_cast<const float*>(tile.sums + row * Int8Panel::columns);
    T* const to = static_cast<T*>(args.y) + (tile.first_row + row) * args.columns + tile.first_column;
    for_columns(d, static_cast<size_t>(tile.columns), [&](auto lanes, size_t i) HWY_ATTR {
      const auto scaled = hn::Add(hn::Round(hn::Mul(hn::LoadU(d, values + i), inverse)), zero);
      const auto clamped = hn::Min(hn::Max(scaled, low), high);
      const auto whole = hn::ConvertTo(d32, hn::IfThenElse(hn::IsNaN(scaled), low, clamped));
      store_bytes(lanes, d8, hn::DemoteTo(d8, whole), to + i);
    });
  }
}

HWY_INLINE void store_floats(const Int8Linear& args, const Int8Tile& tile) {
  for (int64_t row = 0; row < tile.rows; ++row) {
    const auto* const values = reinterpret_cast<const float*>(tile.sums + row * Int8Panel::columns);
    std::copy_n(values, tile.columns,
                static_cast<float*>(args.y) + (tile.first_row + row) * args.columns + tile.first_column);
  }
}

/// Computes the results from the sums.
void finish_int8_tile(const Int8Linear& args, const Int8Tile& tile, int32_t zero_point) {
  scale_tile(args, tile, zero_point);
  for (const Int8Step& step : args.steps) run_step(args, tile, step);
  if (args.result == Int8Result::fp32) return store_floats(args, tile);
  args.result == Int8Result::int8 ? store_integers<int8_t>(args, tile) : store_integers<uint8_t>(args, tile);
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <cstring>

#include "bellows/kernels/parallel.h"

namespace bellows::kernels {

HWY_EXPORT(finish_int8_tile);

namespace {

constexpr int32_t sign_offset = 128;

/// x as unsigned integers, whose rows are padded to whole groups.
struct UnsignedX {
  const uint8_t* values;
  int64_t row;
  int32_t zero_point;
};

bool needs_copy(int64_t inner, bool x_is_signed) {
  return x_is_signed || inner % Int8Panel::group != 0;
}

UnsignedX unsigned_x(const Int8Linear& args) {
  const int32_t zero_point = (args.x_zero_point ? *args.x_zero_point : 0) + (args.x_is_signed ? sign_offset : 0);
  const auto* const x = static_cast<const uint8_t*>(args.x);
  if (!needs_copy(args.inner, args.x_is_signed)) return {x, args.inner, zero_point};
  const int64_t padded = Int8Panel::steps(args.inner) * Int8Panel::group;
  auto* const copy = static_cast<uint8_t*>(args.scratch);
  const uint8_t flipped = args.x_is_signed ? sign_offset : 0;
  constexpr int64_t task_values = 1 << 16;
  parallel_ranges(args.rows, task_values / padded + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint8_t* const from = x + row * args.inner;
      uint8_t* const to = copy + row * padded;
      for (int64_t k = 0; k < args.inner; ++k) to[k] = from[k] ^ flipped;
      std::fill(to + args.inner, to + padded, uint8_t{0});
    }
  });
  return {copy, padded, zero_point};
}

void multiply_panel(const Int8Linear& args, const UnsignedX& x, int64_t panel) {
  alignas(64) int32_t sums[int8_tile_rows * Int8Panel::columns];
  const int64_t steps = Int8Panel::steps(args.inner), column = panel * Int8Panel::columns,
                panels = Int8Panel::count(args.columns), tiles = (args.rows + int8_tile_rows - 1) / int8_tile_rows;
  const auto* const packed = static_cast<const int8_t*>(args.packed);
  const auto* const column_sums = reinterpret_cast<const int32_t*>(packed + panels * Int8Panel::bytes(args.inner));
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t first = args.rows * i / tiles, rows = args.rows * (i + 1) / tiles - first;
    int8_tile(x.values + first * x.row, x.row, rows, packed + panel * Int8Panel::bytes(args.inner), steps, sums);
    HWY_DYNAMIC_DISPATCH(finish_int8_tile)
    (args, {first, rows, column, std::min(Int8Panel::columns, args.columns - column), sums, column_sums + column},
     x.zero_point);
  }
}

}  // namespace

size_t packed_int8_weight_bytes(int64_t columns, int64_t inner) {
  const int64_t panels = Int8Panel::count(columns);
  return static_cast<size_t>(panels * (Int8Panel::bytes(inner) + Int8Panel::columns * 4));
}

size_t int8_linear_scratch_bytes(int64_t rows, int64_t inner, bool x_is_signed) {
  return needs_copy(inner, x_is_signed) ? static_cast<size_t>(rows * Int8Panel::steps(inner) * Int8Panel::group) : 0;
}

void pack_int8_weight(const int8_t* weight, int64_t columns, int64_t inner, void* to) {
  const int64_t panels = Int8Panel::count(columns);
  auto* const packed = static_cast<int8_t*>(to);
  auto* const sums = reinterpret_cast<int32_t*>(packed + panels * Int8Panel::bytes(inner));
  parallel_ranges(panels, (1 << 16) / Int8Panel::bytes(inner + 1) + 1, [&](int64_t begin, int64_t end) {
    std::memset(packed + begin * Int8Panel::bytes(inner), 0, (end - begin) * Int8Panel::bytes(inner));
    std::fill(sums + begin * Int8Panel::columns, sums + end * Int8Panel::columns, 0);
    for (int64_t column = begin * Int8Panel::columns; column < std::min(columns, end * Int8Panel::columns); ++column) {
      int8_t* const strip = packed + column / Int8Panel::columns * Int8Panel::bytes(inner) +
                            column % Int8Panel::columns * Int8Panel::group;
      for (int64_t k = 0; k < inner; ++k) {
        const int8_t value = weight[column * inner + k];
        strip[k / Int8Panel::group * Int8Panel::step_bytes + k % Int8Panel::group] = value;
        sums[column] += value;
      }
    }
  });
}

void int8_linear(const Int8Linear& args) {
  if (args.rows == 0 || args.columns == 0) return;
  const UnsignedX x = unsigned_x(args);
  constexpr int64_t task_products = 2'000'000;  // about 10 µs
  const int64_t panels = Int8Panel::count(args.columns),
                products = std::max<int64_t>(args.rows, 4) * args.inner * Int8Panel::columns,
                parts = std::clamp<int64_t>(panels * products / task_products, 1, panels);
  parallel_chunks(parts, [&](int64_t i) {
    for (int64_t panel = panels * i / parts; panel < panels * (i + 1) / parts; ++panel) multiply_panel(args, x, panel);
  });
}

}  // namespace bellows::kernels

#endif  // HWY_ONCE
