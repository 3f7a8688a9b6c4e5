#include "bellows/kernels/resample.h"

#include <algorithm>

namespace bellows::kernels::ref {

namespace {

/// Position i of the result. Input values are `stride` bytes apart.
uint8_t resampled(const ResampleAxis& axis, int64_t i, const uint8_t* in, int64_t stride) {
  const uint8_t* from = in + axis.first[i] * stride;
  int32_t sum = 1 << (kResampleBits - 1);
  for (int64_t k = 0; k < axis.taps[i]; ++k) sum += from[k * stride] * axis.weights[i * axis.room + k];
  return static_cast<uint8_t>(std::clamp(sum >> kResampleBits, 0, 255));
}

}  // namespace

void resample_rows(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t out_stride) {
  for (int64_t y = 0; y < in.height; ++y) {
    for (int64_t x = 0; x < axis.count; ++x) {
      for (int64_t c = 0; c < in.channels; ++c) {
        const uint8_t* row = in.data + y * in.row_stride + c;
        out[y * out_stride + x * in.channels + c] = resampled(axis, x, row, in.channels);
      }
    }
  }
}

void resample_columns(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t begin) {
  const int64_t values = in.width * in.channels;
  for (int64_t y = 0; y < axis.count; ++y, out += values) {
    for (int64_t i = begin; i < values; ++i) out[i] = resampled(axis, y, in.data + i, in.row_stride);
  }
}

}  // namespace bellows::kernels::ref
