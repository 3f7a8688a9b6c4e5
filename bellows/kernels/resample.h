#pragma once

#include <cstdint>

namespace bellows::kernels {

/// Weights to resize an image along one axis. Position i of the result is
///   (Σ weights[i · room + k] · in[first[i] + k] + ½) / 2^22,  k < taps[i],
/// rounded down and clamped to 8 bits.
struct ResampleAxis {
  int64_t count = 0;  ///< number of positions in the result
  int64_t room = 0;   ///< number of stored weights per position: a multiple of 4
  const int32_t* first = nullptr;
  const int32_t* taps = nullptr;     ///< number of weights that each position uses; at most room
  const int32_t* weights = nullptr;  ///< at most 2^22; weights that are not used are 0
};

inline constexpr int kResampleBits = 22;

/// 8-bit pixels with interleaved channels.
struct ResamplePixels {
  const uint8_t* data = nullptr;
  int64_t height = 0, width = 0, channels = 0;
  int64_t row_stride = 0;  ///< bytes from one row to the next; at least the size of a row
};

/// Resizes each row. `axis` describes the columns.
/// Params:   out – in.height rows of axis.count pixels, `out_stride` bytes apart. After each row, one more byte must be
///                 writable
/// Numerics: bit-identical to kernels/ref (tests/kernels/resample_test.cpp)
/// Cost:     reads the pixels that the taps cover and writes each result once
/// Threads:  thread-safe; runs on the calling thread
void resample_rows(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t out_stride);

/// Resizes each column. `axis` describes the rows.
/// Params: out – axis.count contiguous rows of in.width pixels
void resample_columns(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out);

/// Reference implementations in plain C++. They process one value at a time.
namespace ref {
void resample_rows(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t out_stride);
/// Params: begin – first value of each row to write; all values before it stay unchanged
void resample_columns(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t begin = 0);
}  // namespace ref

}  // namespace bellows::kernels
