#pragma once

#include <cstdint>

/// Products of 8-bit integers in registers, for int8_linear.cpp.
namespace bellows::kernels {

/// The packed weight consists of panels. A panel contains the integers of `columns` columns: four of the first column, four
/// of the second one, …, then the next four of the first column.
struct Int8Panel {
  static constexpr int64_t columns = 32, group = 4, step_bytes = columns * group;

  static int64_t steps(int64_t inner) { return (inner + group - 1) / group; }
  static int64_t bytes(int64_t inner) { return steps(inner) * step_bytes; }
  static int64_t count(int64_t all_columns) { return (all_columns + columns - 1) / columns; }
};

/// Rows of x that are multiplied together, so that their sums fit in the registers.
constexpr int64_t int8_tile_rows = 14;

/// The sums of some rows and of the columns of a panel.
struct Int8Tile {
  int64_t first_row, rows, first_column, columns;
  int32_t* sums;               ///< [rows, Int8Panel::columns]; used as memory for fp32 values afterwards
  const int32_t* column_sums;  ///< of the integers of the weight
};

/// Computes sums[row][column] = Σ x[row][k] · panel[column][k].
/// Params: rows  – 1 to int8_tile_rows
///         x_row – distance between two rows of x in bytes
///         sums  – [rows, Int8Panel::columns], 64-byte aligned
void int8_tile(const uint8_t* x, int64_t x_row, int64_t rows, const int8_t* panel, int64_t steps, int32_t* sums);

}  // namespace bellows::kernels
