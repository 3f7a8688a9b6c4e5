// The packing of quantized weights, and the checks of their formats.
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "bellows/kernels/cpu/weight_only_layout.h"
#include "bellows/kernels/parallel.h"
#include "bellows/kernels/weight_only_linear.h"

namespace bellows::kernels {
namespace {

using Segment = WeightLayout::Segment;

/// Largest magnitude of a zero point. Reduced by half of the range of the integers, it must fit into int16.
constexpr int32_t largest_zero_point = 32'000;

void check_format(const WeightFormat& format, const char* function) {
  TORCH_CHECK_VALUE(format.bits == 8 || format.bits == 4, function, ": `bits` must be 8 or 4, got ", format.bits, ".");
  TORCH_CHECK_VALUE(format.columns >= 0 && format.inner >= 0, function,
                    ": `columns` and `inner` must be at least 0, got ", format.columns, " and ", format.inner, ".");
  TORCH_CHECK_VALUE(format.inner == 0 || (format.group_size > 0 && format.inner % format.group_size == 0), function,
                    ": `group_size` must divide `inner`, got group_size ", format.group_size, " and inner ",
                    format.inner, ". Use group_size = inner for one scale per row.");
}

constexpr int64_t strip = WeightLayout::strip_columns;

/// Writes one column of a segment of 8-bit integers.
/// Params: row – the row of the original weight that becomes this column
void pack_bytes(const uint8_t* row, const Segment& segment, uint8_t flipped, uint8_t* to) {
  for (int64_t k = 0; k < segment.length; ++k) to[k * strip] = row[segment.first + k] ^ flipped;
}

/// Writes one column of a segment of 4-bit integers.
void pack_halves(const uint8_t* row, const Segment& segment, uint8_t flipped, uint8_t* to) {
  for (int64_t k = 0; k < segment.length; k += 8, to += 4 * strip) {
    uint32_t eight = 0;
    for (int64_t i = 0; i < std::min<int64_t>(8, segment.length - k); ++i) {
      const int64_t from = segment.first + k + i;
      const uint32_t half = (row[from / 2] >> (from % 2 * 4)) & 15U;
      eight |= (half ^ flipped) << (4 * i);
    }
    std::memcpy(to, &eight, sizeof eight);
  }
}

void pack_weights(const QuantizedWeight& weight, const WeightLayout& layout, int64_t panel, uint8_t* to) {
  static_assert(std::endian::native == std::endian::little);
  const WeightFormat& format = weight.format;
  const bool halves = format.bits == 4;
  const int64_t row_bytes = halves ? (format.inner + 1) / 2 : format.inner, width = layout.width(panel);
  const int64_t first = panel * WeightLayout::panel_columns, count = std::min(width, format.columns - first);
  const auto* const values = static_cast<const uint8_t*>(weight.values) + first * row_bytes;
  const auto flipped = static_cast<uint8_t>(layout.offset());
  const int64_t strips = width / strip;
  uint8_t* const begin = to + layout.weights_at(panel, {});
  std::memset(begin, 0, static_cast<size_t>(strips * layout.strip_bytes()));
  for (int64_t s = 0; s < layout.segments(); ++s) {
    const Segment segment = layout.segment(s);
    for (int64_t column = 0; column < count; ++column) {
      const uint8_t* const row = values + column * row_bytes;
      uint8_t* const in_strip = begin + column / strip * layout.strip_bytes() + strip * segment.depth;
      halves ? pack_halves(row, segment, flipped, in_strip + 4 * (column % strip))
             : pack_bytes(row, segment, flipped, in_strip + column % strip);
    }
  }
}

/// The inverse of pack_bytes() and pack_halves() for one column.
void unpack_column(const uint8_t* from, const Segment& segment, const WeightFormat& format, uint8_t flipped,
                   uint8_t* row) {
  for (int64_t k = 0; k < segment.length; ++k) {
    const int64_t to = segment.first + k;
    if (format.bits == 8) {
      row[to] = from[k * strip] ^ flipped;
      continue;
    }
    const uint8_t pair = from[k / 8 * 4 * strip + k % 8 / 2];
    const uint32_t half = ((pair >> (k % 2 * 4)) & 15U) ^ flipped;
    row[to / 2] = static_cast<uint8_t>(to % 2 == 0 ? half : row[to / 2] | half << 4);
  }
}

void pack_parameters(const QuantizedWeight& weight, const WeightLayout& layout, int64_t panel, uint8_t* to) {
  const int64_t first = panel * WeightLayout::panel_columns, groups = layout.groups();
  const int64_t width = layout.width(panel), count = std::min(width, weight.format.columns - first);
  for (int64_t group = 0; group < groups; ++group) {
    auto* const scales = reinterpret_cast<float*>(to + layout.scales_at(panel, group));
    auto* const zero_points = reinterpret_cast<int16_t*>(to + layout.zero_points_at(panel, group));
    for (int64_t i = 0; i < width; ++i) {
      const int64_t from = (first + i) * groups + group;
      scales[i] = i < count ? weight.scales[from] : 0;
      if (!layout.stores_zero_points()) continue;
      const int32_t zero_point = i < count && weight.zero_points ? weight.zero_points[from] : 0;
      TORCH_CHECK_VALUE(zero_point >= -largest_zero_point && zero_point <= largest_zero_point,
                        "pack_weight: zero points must be in [-", largest_zero_point, ", ", largest_zero_point,
                        "], got ", zero_point, " (column ", first + i, ", group ", group, ").");
      zero_points[i] = static_cast<int16_t>(zero_point - layout.offset());
    }
  }
}

}  // namespace

size_t packed_weight_bytes(const WeightFormat& format) {
  check_format(format, "packed_weight_bytes");
  return WeightLayout(format).bytes();
}

size_t weight_only_linear_scratch_bytes(c10::ScalarType dtype, const WeightFormat& format, int64_t rows) {
  check_format(format, "weight_only_linear_scratch_bytes");
  return WeightOnlyScratch(dtype, format, rows).bytes();
}

void unpack_weight(const void* packed, const WeightFormat& format, void* to) {
  check_format(format, "unpack_weight");
  if (format.columns == 0 || format.inner == 0) return;
  TORCH_CHECK_VALUE(packed && to, "unpack_weight: `packed` and `to` must not be null.");
  const WeightLayout layout(format);
  const int64_t row_bytes = format.bits == 4 ? (format.inner + 1) / 2 : format.inner;
  const auto flipped = static_cast<uint8_t>(layout.offset());
  const int64_t element = format.bits == 4 ? 4 : 1;
  for (int64_t column = 0; column < format.columns; ++column) {
    const int64_t panel = column / WeightLayout::panel_columns, place = column % WeightLayout::panel_columns;
    const auto* const in_strip = static_cast<const uint8_t*>(packed) + layout.weights_at(panel, {}) +
                                 place / strip * layout.strip_bytes() + element * (place % strip);
    for (int64_t s = 0; s < layout.segments(); ++s) {
      const Segment segment = layout.segment(s);
      unpack_column(in_strip + strip * segment.depth, segment, format, flipped,
                    static_cast<uint8_t*>(to) + column * row_bytes);
    }
  }
}

void pack_weight(const QuantizedWeight& weight, void* to) {
  const WeightFormat& format = weight.format;
  check_format(format, "pack_weight");
  if (format.columns == 0 || format.inner == 0) return;
  TORCH_CHECK_VALUE(
      weight.values && weight.scales && to,
      "pack_weight: `values`, `scales` and `to` must not be null. Allocate packed_weight_bytes() for `to`.");
  TORCH_CHECK_VALUE(
      format.has_zero_points == (weight.zero_points != nullptr), "pack_weight: `has_zero_points` is ",
      format.has_zero_points ? "true, but `zero_points` is null." : "false, but `zero_points` is not null.",
      " Set both, or neither.");
  TORCH_CHECK_VALUE(reinterpret_cast<uintptr_t>(to) % 64 == 0, "pack_weight: `to` must be 64-byte aligned.");
  const WeightLayout layout(format);
  constexpr int64_t task_integers = 1 << 15;
  const int64_t grain = task_integers / (WeightLayout::panel_columns * format.inner) + 1;
  parallel_ranges(layout.panels(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      pack_weights(weight, layout, panel, static_cast<uint8_t*>(to));
      pack_parameters(weight, layout, panel, static_cast<uint8_t*>(to));
    }
  });
}

}  // namespace bellows::kernels
