#pragma once

#include <cstdint>

namespace bellows::kernels {

/// Positions along one axis of a picture that is scaled: position i of the result is
///   (Σ weights[i · room + k] · in[first[i] + k] + ½) / 2^22,  k < taps[i],
/// rounded down and clamped to 8 bits.
struct ResampleAxis {
  int64_t count = 0;  ///< positions of the result
  int64_t room = 0;   ///< weights a position has room for: a multiple of 4
  const int32_t* first = nullptr;
  const int32_t* taps = nullptr;     ///< at most room
  const int32_t* weights = nullptr;  ///< up to 2^22; those behind the taps are 0
};

inline constexpr int kResampleBits = 22;

/// 8-bit pixels with their channels side by side.
struct ResamplePixels {
  const uint8_t* data = nullptr;
  int64_t height = 0, width = 0, channels = 0;
  int64_t row_stride = 0;  ///< bytes from a row to the next, at least those of a row
};

/// Scales along rows: `axis` runs over columns.
/// Params:   out – in.height rows of axis.count pixels, one every `out_stride` bytes, and a byte of room behind each
/// Numerics: the bits of kernels/ref (tests/kernels/resample_test.cpp)
/// Cost:     reads what the taps reach and writes once
/// Threads:  runs in the caller's; safe from all threads
void resample_rows(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t out_stride);

/// Scales along columns: `axis` runs over rows.
/// Params:   out – axis.count rows of in.width pixels, side by side
void resample_columns(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out);

/// The same, value after value: what the fast kernels have to equal.
namespace ref {
void resample_rows(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t out_stride);
/// Params: begin – leaves the first values of each row as they are
void resample_columns(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t begin = 0);
}  // namespace ref

}  // namespace bellows::kernels
