#pragma once

#include <cstdint>

namespace bellows::kernels {

/// Weights to resize an image along one axis. Position i of the result is
///   (Σ weights[i · room + k] · in[first[i] + k] + ½) / 2^22,  k < taps[i],
/// rounded down and clamped to 8 bits.
struct ResampleAxis {
  int64_t count = 0;  ///< positions of the result
  int64_t room = 0;   ///< stored weights per position: a multiple of 4
  const int32_t* first = nullptr;
  const int32_t* taps = nullptr;     ///< at most room
  const int32_t* weights = nullptr;  ///< up to 2^22; those after the taps are 0
};

inline constexpr int kResampleBits = 22;

/// 8-bit pixels with interleaved channels.
struct ResamplePixels {
  const uint8_t* data = nullptr;
  int64_t height = 0, width = 0, channels = 0;
  int64_t row_stride = 0;  ///< bytes from one row to the next, at least those of a row
};

/// Resizes along rows: `axis` runs over columns.
/// Params:   out – in.height rows of axis.count pixels, `out_stride` bytes apart, with one more writable byte after
///           each row
/// Numerics: bit-identical to kernels/ref (tests/kernels/resample_test.cpp)
/// Cost:     reads the pixels that the taps reach and writes once
/// Threads:  runs on the calling thread; safe from all threads
void resample_rows(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t out_stride);

/// Resizes along columns: `axis` runs over rows.
/// Params: out – axis.count contiguous rows of in.width pixels
void resample_columns(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out);

/// Reference implementation, one value at a time.
namespace ref {
void resample_rows(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t out_stride);
/// Params: begin – first value of each row to write; the values before it stay unchanged
void resample_columns(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t begin = 0);
}  // namespace ref

}  // namespace bellows::kernels
