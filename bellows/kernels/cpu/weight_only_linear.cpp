// Linear layers with quantized weights, compiled once per instruction set that Highway supports; the best one is chosen
// at run time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/weight_only_linear.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/highway.h>

#include <hwy/cache_control.h>
// clang-format on

#include <algorithm>
#include <type_traits>

#include "bellows/kernels/cpu/values_impl.h"
#include "bellows/kernels/cpu/weight_only_layout.h"
#include "bellows/kernels/scratch.h"
#include "bellows/kernels/weight_only_linear.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

/// At most one strip of columns, so that each panel consists of whole vectors.
using WeightTag = hn::CappedTag<float, WeightLayout::strip_columns>;
using WeightVector = hn::Vec<WeightTag>;
using WeightBits = hn::Vec<hn::RebindToSigned<WeightTag>>;

/// Rows of x that one pass over the weight multiplies.
constexpr int64_t block_rows = 8;
/// Groups between the loaded and the prefetched scales.
constexpr int64_t groups_ahead = 4;

/// Bytes of a strip that are read together. They contain `steps` integers per column.
constexpr int64_t line_bytes = 64;

/// The integers of a column and of the next column are `column_bytes` apart.
struct BytesReader {
  static constexpr int64_t steps = 4, column_bytes = 1;
  static constexpr bool prefetches = true;

  HWY_INLINE const uint8_t* load(const uint8_t* from) const { return from; }
  template <int step>
  HWY_INLINE WeightVector value(const uint8_t* from) const {
    const hn::Rebind<int8_t, WeightTag> d8;
    const hn::RebindToSigned<WeightTag> d32;
    const auto* const bytes = reinterpret_cast<const int8_t*>(from + step * WeightLayout::strip_columns);
    return hn::ConvertTo(WeightTag(), hn::PromoteTo(d32, hn::LoadU(d8, bytes)));
  }
};

struct HalvesReader {
  static constexpr int64_t steps = 8, column_bytes = 4;
  static constexpr bool prefetches = true;

#if HWY_TARGET <= HWY_AVX3
  HalvesReader() : table_(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)) {}

  HWY_INLINE const uint8_t* load(const uint8_t* from) const {
    return from;
  }
  /// Returns the integer in the four bits that begin at bit 4 · step. A load from the byte of the integer is faster than a
  /// shift. It also reads up to three bytes after the weights, which belong to the scales. The table lookup ignores all
  /// bits except the lowest four.
  template <int step>
  HWY_INLINE WeightVector value(const uint8_t* from) const {
    const __m512i loaded = _mm512_loadu_si512(from + step / 2);
    return WeightVector{_mm512_permutexvar_ps(step % 2 ? _mm512_srli_epi32(loaded, 4) : loaded, table_)};
  }

 private:
  __m512 table_;
#else
  HWY_INLINE WeightBits load(const uint8_t* from) const {
    const hn::RebindToSigned<WeightTag> d32;
    return hn::LoadU(d32, reinterpret_cast<const int32_t*>(from));
  }
  template <int step>
  HWY_INLINE WeightVector value(WeightBits loaded) const {
    return hn::ConvertTo(WeightTag(), hn::ShiftRight<28>(hn::ShiftLeft<28 - 4 * step>(loaded)));
  }
#endif
};

/// Reads integers that were converted to floats.
struct FloatsReader {
  static constexpr int64_t steps = 1, column_bytes = 4;
  static constexpr bool prefetches = false;

  HWY_INLINE WeightVector load(const uint8_t* from) const {
    return hn::LoadU(WeightTag(), reinterpret_cast<const float*>(from));
  }
  template <int step>
  HWY_INLINE WeightVector value(WeightVector loaded) const {
    return loaded;
  }
};

/// Calls action(std::integral_constant<int, i>) for i in [0, count).
template <int count, class Action>
HWY_INLINE void unrolled(Action action) {
  if constexpr (count > 0) {
    unrolled<count - 1>(action);
    action(std::integral_constant<int, count - 1>());
  }
}

/// A segment of a panel, and the rows by which it is multiplied.
struct SegmentProduct {
  const uint8_t* weights;  ///< of the first strip
  int64_t strip_bytes;     ///< distance between two strips
  int64_t ahead;           ///< distance to the prefetched weights
  int64_t width, length;
  const float* x;
  int64_t x_row;
  const float* scales;
  const int16_t* zero_points;  ///< null if they are not stored
  const float* sums;           ///< sums of x over the segment
  int64_t sums_row;
  float* totals;  ///< [rows, panel_columns]
};

constexpr auto weight_lanes = static_cast<int64_t>(hn::MaxLanes(WeightTag()));

/// The sums of some columns of a segment, in registers.
template <int rows, int vectors>
struct ColumnSums {
  WeightVector sums[rows][vectors];

  HWY_INLINE ColumnSums() {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[r][v] = hn::Zero(WeightTag());
    }
  }

  /// Adds the products of one integer per column.
  HWY_INLINE void add(const WeightVector (&weights)[vectors], const float* x, int64_t x_row) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const auto factor = hn::Set(WeightTag(), x[r * x_row]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[r][v] = hn::MulAdd(factor, weights[v], sums[r][v]);
    }
  }

  /// Adds the sums, multiplied by the scales, to the totals of the columns that begin at `first`.
  HWY_INLINE void add_to_totals(const SegmentProduct& args, int64_t first) const {
    const WeightTag d;
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const int64_t column = first + v * weight_lanes;
      hwy::Prefetch(args.scales + column + groups_ahead * args.width);
      const auto scale = hn::LoadU(d, args.scales + column);
      auto zero_point = hn::Zero(d);
      if (args.zero_points) {
        const hn::Rebind<int16_t, WeightTag> d16;
        const hn::RebindToSigned<WeightTag> d32;
        zero_point = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d16, args.zero_points + column)));
      }
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        auto sum = sums[r][v];
        if (args.zero_points) sum = hn::NegMulAdd(zero_point, hn::Set(d, args.sums[r * args.sums_row]), sum);
        float* const total = args.totals + r * WeightLayout::panel_columns + column;
        hn::StoreU(hn::MulAdd(sum, scale, hn::LoadU(d, total)), d, total);
      }
    }
  }
};

/// Adds the product of some columns of a segment to the totals.
/// Params: first – of the columns in the panel
template <class Reader, int rows, int vectors>
HWY_NOINLINE void multiply_columns(const SegmentProduct& args, int64_t first) {
  constexpr int64_t strip = WeightLayout::strip_columns;
  const Reader reader;
  ColumnSums<rows, vectors> sums;
  const uint8_t* HWY_RESTRICT from =
      args.weights + first / strip * args.strip_bytes + first % strip * Reader::column_bytes;
  int64_t offsets[vectors];
#pragma GCC unroll 8
  for (int64_t v = 0; v < vectors; ++v)
    offsets[v] = v * weight_lanes / strip * args.strip_bytes + v * weight_lanes % strip * Reader::column_bytes;
  using Loaded = decltype(reader.load(from));
  for (int64_t k = 0; k < args.length; k += Reader::steps, from += line_bytes) {
    Loaded loaded[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) loaded[v] = reader.load(from + offsets[v]);
    if constexpr (Reader::prefetches) {
      constexpr int per_line = std::max<int>(1, strip / weight_lanes);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v += per_line) hwy::Prefetch(from + offsets[v] + args.ahead);
    }
    const auto add = [&](auto step) HWY_ATTR {
      WeightVector weights[vectors];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) weights[v] = reader.template value<decltype(step)::value>(loaded[v]);
      sums.add(weights, args.x + k + step, args.x_row);
    };
    if (k + Reader::steps <= args.length) {
      unrolled<Reader::steps>(add);
    } else {
      unrolled<Reader::steps>([&](auto step) HWY_ATTR {
        if (k + step < args.length) add(step);
      });
    }
  }
  sums.add_to_totals(args, first);
}

/// Vectors of columns that are multiplied together, so that the sums fit in the registers and hide the latency of additions.
template <int rows>
constexpr int vectors_of = HWY_TARGET <= HWY_AVX3 ? (rows <= 6 ? 4 : 2)
                                                  : (rows <= 2   ? 4
                                                     : rows <= 6 ? 2
                                                                 : 1);

template <class Reader, int rows>
void multiply_segment(const SegmentProduct& args) {
  constexpr int64_t lanes = weight_lanes;
  int64_t column = 0;
  for (; column + vectors_of<rows> * lanes <= args.width; column += vectors_of<rows> * lanes)
    multiply_columns<Reader, rows, vectors_of<rows>>(args, column);
  if constexpr (vectors_of < rows >> 1) {
    for (; column < args.width; column += lanes) multiply_columns<Reader, rows, 1>(args, column);
  }
}

template <class Reader>
void multiply_rows(const SegmentProduct& args, int64_t rows) {
  constexpr void (*functions[block_rows])(const SegmentProduct&) = {
      multiply_segment<Reader, 1>, multiply_segment<Reader, 2>, multiply_segment<Reader, 3>,
      multiply_segment<Reader, 4>, multiply_segment<Reader, 5>, multiply_segment<Reader, 6>,
      multiply_segment<Reader, 7>, multiply_segment<Reader, 8>};
  functions[rows - 1](args);
}

/// Multiplies all rows, in blocks.
template <class Reader>
void multiply_blocks(SegmentProduct args, int64_t rows) {
  for (int64_t row = 0; row < rows; row += block_rows) {
    multiply_rows<Reader>(args, std::min(block_rows, rows - row));
    args.x += block_rows * args.x_row;
    args.sums += block_rows * args.sums_row;
    args.totals += block_rows * WeightLayout::panel_columns;
  }
}

/// Converts the integers of a segment to floats: [strip, length, column].
template <class Reader>
void convert_segment(const SegmentProduct& args, float* to) {
  const WeightTag d;
  const Reader reader;
  constexpr int64_t lanes = weight_lanes;
  constexpr int64_t strip = WeightLayout::strip_columns;
  for (int64_t first = 0; first < args.width; first += strip, to += args.length * strip) {
    const uint8_t* from = args.weights + first / strip * args.strip_bytes;
    for (int64_t k = 0; k < args.length; k += Reader::steps, from += line_bytes) {
      for (int64_t column = 0; column < strip; column += lanes) {
        const auto loaded = reader.load(from + column * Reader::column_bytes);
        unrolled<Reader::steps>([&](auto step) HWY_ATTR {
          if (k + step < args.length)
            hn::StoreU(reader.template value<decltype(step)::value>(loaded), d, to + (k + step) * strip + column);
        });
      }
    }
  }
}

template <class T>
void store_totals(const WeightOnlyLinear& args, const float* totals, int64_t column, int64_t width) {
  const WeightTag d;
  constexpr int64_t lanes = weight_lanes;
  for (int64_t row = 0; row < args.rows; ++row) {
    T* const y = static_cast<T*>(args.y) + row * args.y_row + column;
    const float* const total = totals + row * WeightLayout::panel_columns;
    for (int64_t i = 0; i < width; i += lanes) {
      const auto store = [&](const auto& part) HWY_ATTR {
        const auto sum = hn::LoadU(d, total + i);
        part.store(d, args.bias ? hn::Add(sum, part.load(d, args.bias + column + i)) : sum, y + i);
      };
      const int64_t left_over = width - i;
      left_over >= lanes ? store(Whole{}) : store(Part{static_cast<size_t>(left_over)});
    }
  }
}

/// Returns the bytes between the loaded and the prefetched weights. The processor's own prefetchers stop at the end of a
/// page. At the end of the strips, the function returns the distance to the beginning of the next panel.
inline int64_t prefetch_distance(const WeightLayout& layout, const WeightLayout::Segment& segment, int bits) {
  constexpr int64_t strip = WeightLayout::strip_columns, strips = WeightLayout::panel_columns / strip;
  const int64_t distance = std::clamp<int64_t>(strip * segment.length * bits / 8, 1024, 4096);
  const int64_t left = layout.used_strip_bytes() - strip * segment.depth;
  return left > distance ? distance : strips * layout.strip_bytes() + distance - layout.used_strip_bytes();
}

/// Rows of x in fp32, and their sums over the segments.
struct PreparedX {
  const float* x;
  int64_t x_row;
  const float* sums;  ///< null if they are not needed
  int64_t sums_row;
};

inline SegmentProduct segment_product(const WeightOnlyLinear& args, const WeightLayout& layout, const PreparedX& x,
                                      int64_t panel, int64_t s, float* totals) {
  const WeightLayout::Segment segment = layout.segment(s);
  const auto* const packed = static_cast<const uint8_t*>(args.packed);
  const void* const zero_points = x.sums ? packed + layout.zero_points_at(panel, segment.group) : nullptr;
  return {.weights = packed + layout.weights_at(panel, segment),
          .strip_bytes = layout.strip_bytes(),
          .ahead = prefetch_distance(layout, segment, args.format.bits),
          .width = layout.width(panel),
          .length = segment.length,
          .x = x.x + segment.first,
          .x_row = x.x_row,
          .scales = reinterpret_cast<const float*>(packed + layout.scales_at(panel, segment.group)),
          .zero_points = static_cast<const int16_t*>(zero_points),
          .sums = x.sums ? x.sums + s : nullptr,
          .sums_row = x.sums_row,
          .totals = totals};
}

/// Multiplies up to WeightOnlyScratch::most_rows rows by one panel.
template <class Reader>
void multiply_weight_panel(const WeightOnlyLinear& args, const PreparedX& x, int64_t panel) {
  constexpr int64_t width = WeightLayout::panel_columns, tile = WeightLayout::segment_length * width;
  const WeightLayout layout(args.format);
  float* const totals = thread_scratch(static_cast<size_t>(WeightOnlyScratch::most_rows * width + tile));
  float* const converted = totals + WeightOnlyScratch::most_rows * width;
  std::fill_n(totals, args.rows * width, 0.0f);
  const bool converts = args.rows > 2 * block_rows;
  for (int64_t s = 0; s < layout.segments(); ++s) {
    SegmentProduct product = segment_product(args, layout, x, panel, s, totals);
    if (converts) {
      convert_segment<Reader>(product, converted);
      product.weights = reinterpret_cast<const uint8_t*>(converted);
      product.strip_bytes = product.length * line_bytes;
      multiply_blocks<FloatsReader>(product, args.rows);
    } else {
      multiply_blocks<Reader>(product, args.rows);
    }
  }
  const int64_t column = panel * width, count = std::min(width, args.format.columns - column);
  args.dtype == c10::ScalarType::Float ? store_totals<float>(args, totals, column, count)
                                       : store_totals<c10::BFloat16>(args, totals, column, count);
}

void multiply_weight_panels(const WeightOnlyLinear& args, const float* x, int64_t x_row, const float* sums,
                            int64_t sums_row, int64_t begin, int64_t end) {
  const PreparedX prepared{x, x_row, sums, sums_row};
  for (int64_t panel = begin; panel < end; ++panel) {
    args.format.bits == 8 ? multiply_weight_panel<BytesReader>(args, prepared, panel)
                          : multiply_weight_panel<HalvesReader>(args, prepared, panel);
  }
}

/// Converts values to floats.
void convert_x(const c10::BFloat16* from, int64_t count, float* to) {
  const WeightTag d;
  constexpr int64_t lanes = weight_lanes;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(load_values(d, from + i), d, to + i);
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

/// Computes the sums of a row of x over all segments.
void sum_x(const WeightLayout& layout, const float* x, float* sums) {
  const WeightTag d;
  constexpr int64_t lanes = weight_lanes;
  for (int64_t s = 0; s < layout.segments(); ++s) {
    const WeightLayout::Segment segment = layout.segment(s);
    const float* const from = x + segment.first;
    auto sum = hn::Zero(d);
    int64_t k = 0;
    for (; k + lanes <= segment.length; k += lanes) sum = hn::Add(sum, hn::LoadU(d, from + k));
    if (k < segment.length) sum = hn::Add(sum, Part{static_cast<size_t>(segment.length - k)}.load(d, from + k));
    sums[s] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "bellows/kernels/parallel.h"

namespace bellows::kernels {

HWY_EXPORT(multiply_weight_panels);
HWY_EXPORT(convert_x);
HWY_EXPORT(sum_x);

namespace {

void check_linear(const WeightOnlyLinear& args) {
  TORCH_CHECK_VALUE(args.dtype == c10::ScalarType::Float || args.dtype == c10::ScalarType::BFloat16,
                    "weight_only_linear: `dtype` must be Float or BFloat16, got ", args.dtype, ".");
  TORCH_CHECK_VALUE(args.y && (args.format.inner == 0 || (args.x && args.packed)),
                    "weight_only_linear: `x`, `packed` and `y` must not be null. pack_weight() fills `packed`.");
  TORCH_CHECK_VALUE(args.scratch || weight_only_linear_scratch_bytes(args.dtype, args.format, args.rows) == 0,
                    "weight_only_linear: `scratch` must not be null. Allocate weight_only_linear_scratch_bytes().");
}

/// Converts x to floats and computes its sums, as far as the kernels need them.
void prepare_x(const WeightOnlyLinear& args, const WeightOnlyScratch& scratch, float* x, float* sums) {
  const WeightLayout layout(args.format);
  constexpr int64_t task_values = 1 << 15;
  parallel_ranges(args.rows, task_values / (args.format.inner + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = x + row * scratch.x_row();
      if (scratch.x_row()) {
        const auto* const low = static_cast<const c10::BFloat16*>(args.x) + row * args.x_row;
        HWY_DYNAMIC_DISPATCH(convert_x)(low, args.format.inner, x + row * scratch.x_row());
      } else {
        from = static_cast<const float*>(args.x) + row * args.x_row;
      }
      if (sums) HWY_DYNAMIC_DISPATCH(sum_x)(layout, from, sums + row * scratch.sums_row());
    }
  });
}

/// Computes up to WeightOnlyScratch::most_rows rows.
void linear_block(const WeightOnlyLinear& args) {
  const WeightOnlyScratch scratch(args.dtype, args.format, args.rows);
  auto* const buffer = static_cast<float*>(args.scratch);
  float* const sums = scratch.sums_row() ? buffer + scratch.sums_at() : nullptr;
  if (scratch.bytes() > 0) prepare_x(args, scratch, buffer, sums);
  const float* const x = scratch.x_row() ? buffer : static_cast<const float*>(args.x);
  const int64_t x_row = scratch.x_row() ? scratch.x_row() : args.x_row;
  constexpr int64_t task_products = 100'000;  // about 10 µs
  const int64_t panels = WeightLayout(args.format).panels();
  const int64_t products = WeightLayout::panel_columns * args.format.inner * args.rows;
  // A few chunks per thread, because a chunk prefetches each of its panels except the first.
  const int64_t per_chunk = std::max(task_products / (products + 1) + 1, panels / (4 * at::get_num_threads()));
  parallel_chunks((panels + per_chunk - 1) / per_chunk, [&](int64_t chunk) {
    const int64_t begin = chunk * per_chunk, end = std::min(begin + per_chunk, panels);
    HWY_DYNAMIC_DISPATCH(multiply_weight_panels)(args, x, x_row, sums, scratch.sums_row(), begin, end);
  });
}

}  // namespace

void weight_only_linear(const WeightOnlyLinear& args) {
  if (args.rows == 0 || args.format.columns == 0) return;
  check_linear(args);
  const auto element = static_cast<int64_t>(c10::elementSize(args.dtype));
  for (int64_t row = 0; row < args.rows; row += WeightOnlyScratch::most_rows) {
    WeightOnlyLinear block = args;
    block.rows = std::min(WeightOnlyScratch::most_rows, args.rows - row);
    block.x = static_cast<const uint8_t*>(args.x) + row * args.x_row * element;
    block.y = static_cast<uint8_t*>(args.y) + row * args.y_row * element;
    linear_block(block);
  }
}

}  // namespace bellows::kernels

#endif  // HWY_ONCE
