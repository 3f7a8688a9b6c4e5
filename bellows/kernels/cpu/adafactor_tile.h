#pragma once

#include <cstdint>

namespace bellows::kernels::cpu {

/// Some rows of a tensor, counted over all batches, and what the passes over them say to each other.
struct AdafactorTile {
  int64_t first_row = 0, last_row = 0;
  double* row_sums = nullptr;            ///< by row of the tensor: sum of squares
  const double* row_factors = nullptr;   ///< by row of the tensor
  void* column_sums = nullptr;           ///< [batches that the tile touches, columns]
  const void* column_factors = nullptr;  ///< [batches, columns]
  double weight_squares = 0, update_squares = 0;
  double lr = 0, factor = 0;  ///< of the decay, of the update
};

}  // namespace bellows::kernels::cpu
