#pragma once

#include <cstdint>

namespace bellows::kernels {

/// The buffers of int8_attention.cpp for one head. Panels are described in int8_tile.h.
struct Int8HeadMemory {
  int64_t queries_row = 0, logits_row = 0, powers_row = 0;  ///< distances between rows, in elements
  int8_t* keys = nullptr;                                   ///< panels of the weight [columns, width]
  int8_t* values = nullptr;                                 ///< panels of the weight [value_width, columns]
  int32_t* key_sums = nullptr;                              ///< for each key: sum of its integers
  int8_t* row_integers = nullptr;                           ///< one key
  uint8_t* queries = nullptr;                               ///< integers plus 128
  int32_t* sums = nullptr;
  float* logits = nullptr;  ///< to the base 2
  uint8_t* powers = nullptr;
};

}  // namespace bellows::kernels
