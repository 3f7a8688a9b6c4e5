#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "bellows/kernels/weight_only_linear.h"

namespace bellows::kernels {

/// The order of the numbers in a packed weight.
///
/// A *strip* has 16 columns, and a *panel* has four strips. The last panel has fewer. A *segment* is a part of a group with
/// at most 256 integers per column. Strips follow each other, and in a strip its segments. A segment of 8-bit integers is
/// a matrix [length, 16]. A segment of 4-bit integers is a matrix of four bytes [ceil(length / 8), 16]. Each element
/// contains eight integers, in order from the least significant bits. Integers are signed in two's complement: unsigned
/// integers and their zero points are reduced by half of their range.
///
/// The scales follow the strips, in the order [panel, group, column], and the zero points as int16 in the same order.
/// A panel is multiplied strip by strip side by side, because processors read four streams of memory faster than one. A
/// strip has an odd number of cache lines, so that the streams use different sets of the caches.
class WeightLayout {
 public:
  static constexpr int64_t strip_columns = 16;  ///< the number of columns is padded to a multiple
  static constexpr int64_t panel_columns = 64;
  static constexpr int64_t segment_length = 256;

  explicit WeightLayout(const WeightFormat& format) : format_(format) {}

  int64_t padded_columns() const { return round_up(format_.columns, strip_columns); }
  int64_t panels() const { return (format_.columns + panel_columns - 1) / panel_columns; }
  int64_t width(int64_t panel) const { return std::min(panel_columns, padded_columns() - panel * panel_columns); }

  int64_t groups() const { return format_.inner == 0 ? 0 : format_.inner / format_.group_size; }
  int64_t segments() const { return groups() * segments_per_group(); }
  bool stores_zero_points() const { return format_.has_zero_points || !format_.is_signed; }
  /// The number by which stored integers and zero points are reduced.
  int offset() const { return format_.is_signed ? 0 : 1 << (format_.bits - 1); }

  struct Segment {
    int64_t group;
    int64_t first, length;  ///< of the integers in a row of the original weight
    int64_t depth;          ///< bytes of a column before the segment
  };
  Segment segment(int64_t i) const {
    const int64_t group = i / segments_per_group(), first = i % segments_per_group() * segment_length;
    return {.group = group,
            .first = group * format_.group_size + first,
            .length = std::min(segment_length, format_.group_size - first),
            .depth = group * group_depth() + first * format_.bits / 8};
  }

  /// Offsets in bytes from the beginning of a packed weight.
  size_t weights_at(int64_t panel, const Segment& segment) const {
    return static_cast<size_t>(panel * (panel_columns / strip_columns) * strip_bytes() + strip_columns * segment.depth);
  }
  /// Bytes of a strip, with and without the padding at its end.
  int64_t strip_bytes() const { return (used_strip_bytes() + 63) / 64 * 64 | 64; }
  int64_t used_strip_bytes() const { return strip_columns * depth(); }
  size_t scales_at(int64_t panel, int64_t group) const {
    return scales_begin() + static_cast<size_t>(parameter(panel, group)) * sizeof(float);
  }
  size_t zero_points_at(int64_t panel, int64_t group) const {
    return zero_points_begin() + static_cast<size_t>(parameter(panel, group)) * sizeof(int16_t);
  }
  size_t bytes() const {
    const size_t zero_points = static_cast<size_t>(padded_columns() * groups()) * sizeof(int16_t);
    return zero_points_begin() + (stores_zero_points() ? zero_points : 0);
  }

 private:
  static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

  int64_t segments_per_group() const { return (format_.group_size + segment_length - 1) / segment_length; }
  /// Bytes of a column in a group, and in all groups.
  int64_t group_depth() const { return format_.bits == 8 ? format_.group_size : round_up(format_.group_size, 8) / 2; }
  int64_t depth() const { return groups() * group_depth(); }
  int64_t parameter(int64_t panel, int64_t group) const {
    return panel * panel_columns * groups() + group * width(panel);
  }
  size_t scales_begin() const { return static_cast<size_t>(padded_columns() / strip_columns * strip_bytes()); }
  size_t zero_points_begin() const {
    return scales_begin() + static_cast<size_t>(padded_columns() * groups()) * sizeof(float);
  }

  WeightFormat format_;
};

/// The scratch memory of weight_only_linear() for up to 64 rows: x as floats, if it is BFloat16, and for each row the
/// sums of x over the segments, if the zero points are stored.
class WeightOnlyScratch {
 public:
  static constexpr int64_t most_rows = 64;

  WeightOnlyScratch(c10::ScalarType dtype, const WeightFormat& format, int64_t rows)
      : rows_(std::min(rows, most_rows)),
        // A line more than the row, because rows at a distance of 4096 bytes would share few sets of the L1 cache.
        x_row_(dtype == c10::ScalarType::Float ? 0 : (format.inner + 31) / 16 * 16),
        sums_row_(WeightLayout(format).stores_zero_points() ? WeightLayout(format).segments() : 0) {}

  int64_t x_row() const { return x_row_; }        ///< floats of a converted row; 0: x is not converted
  int64_t sums_row() const { return sums_row_; }  ///< sums of a row; 0: not needed
  int64_t sums_at() const { return rows_ * x_row_; }
  size_t bytes() const { return static_cast<size_t>(rows_ * (x_row_ + sums_row_)) * sizeof(float); }

 private:
  int64_t rows_, x_row_, sums_row_;
};

}  // namespace bellows::kernels
