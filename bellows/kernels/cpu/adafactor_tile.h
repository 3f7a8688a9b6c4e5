#pragma once

#include <cstdint>

namespace bellows::kernels::cpu {

/// Some rows of a tensor, and the data that the passes over these rows exchange. Rows are counted over all batches.
struct AdafactorTile {
  int64_t first_row = 0, last_row = 0;
  double* row_sums = nullptr;            ///< for each row of the tensor: sum of squares
  const double* row_factors = nullptr;   ///< for each row of the tensor
  void* column_sums = nullptr;           ///< [batches in the tile, columns]
  const void* column_factors = nullptr;  ///< [batches, columns]
  double weight_squares = 0, update_squares = 0;
  double lr = 0, factor = 0;  ///< lr scales the weight decay; factor scales the update
};

}  // namespace bellows::kernels::cpu
