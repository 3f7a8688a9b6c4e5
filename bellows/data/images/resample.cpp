#include "bellows/data/images/resample.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "bellows/kernels/resample.h"

// Pillow's separable resampling for 8-bit pixels: triangle filter stretched by the scale, weights in 22-bit fixed
// point, the result of each pass rounded and clamped to 8 bits.

namespace bellows::data {

namespace {

/// Pillow's triangle for position i of a side.
struct Triangle {
  explicit Triangle(const ScaledSide& scaled) : side(scaled), scale(side.scale()), support(std::max(scale, 1.0)) {}
  double center(int64_t i) const { return side.begin + (static_cast<double>(i) + 0.5) * scale; }
  int64_t first(double at) const { return static_cast<int64_t>(std::max(at - support + 0.5, 0.0)); }
  int64_t last(double at) const {
    return static_cast<int64_t>(std::min(at + support + 0.5, static_cast<double>(side.pixels)));
  }
  const ScaledSide& side;
  double scale, support;
};

/// Weights of positions [begin, end) of `side`, whose pixel 0 is at `origin`.
kernels::ResampleAxis weights_of(const ScaledSide& side, int64_t begin, int64_t end, int64_t origin,
                                 Scratch::Weights& memory) {
  const Triangle triangle(side);
  const double scale = 1.0 / triangle.support;
  const auto count = static_cast<size_t>(end - begin);
  const size_t most = static_cast<size_t>(std::ceil(triangle.support)) * 2 + 1;
  const size_t room = (most + 3) / 4 * 4;
  memory.first.resize(count);
  memory.taps.resize(count);
  memory.weights.assign(count * room, 0);
  memory.exact.resize(room);
  for (size_t i = 0; i < count; ++i) {
    const double center = triangle.center(begin + static_cast<int64_t>(i));
    const int64_t first = triangle.first(center), last = triangle.last(center);
    double sum = 0;
    for (int64_t x = first; x < last; ++x) {
      const double weight = std::max(0.0, 1.0 - std::abs((static_cast<double>(x) - center + 0.5) * scale));
      memory.exact[static_cast<size_t>(x - first)] = weight;
      sum += weight;
    }
    memory.first[i] = static_cast<int32_t>(first + origin);
    memory.taps[i] = static_cast<int32_t>(last - first);
    for (size_t k = 0; k < static_cast<size_t>(last - first); ++k)
      memory.weights[i * room + k] = static_cast<int32_t>(0.5 + memory.exact[k] / sum * (1 << kernels::kResampleBits));
  }
  return {end - begin, static_cast<int64_t>(room), memory.first.data(), memory.taps.data(), memory.weights.data()};
}

/// `image` with contiguous pixels from left to right and contiguous rows, as the kernels expect it.
ImageView forward(const ImageView& image, Scratch& scratch) {
  const int64_t row = image.width * image.channels;
  if (image.pixel_stride == image.channels && image.row_stride >= row) return image;
  uint8_t* copy = scratch.next(static_cast<size_t>(image.height * row));
  image.copy_to(copy, row);
  return {copy, image.height, image.width, image.channels, row, image.channels};
}

kernels::ResamplePixels pixels_of(const ImageView& image) {
  return {image.pixels, image.height, image.width, image.channels, image.row_stride};
}

ImageView rows_resampled(const ImageView& in, const kernels::ResampleAxis& axis, Scratch& scratch) {
  const int64_t stride = axis.count * in.channels + 1;
  const auto bytes = static_cast<size_t>(in.height * stride);
  if (scratch.rows.size() < bytes) scratch.rows.resize(bytes);
  kernels::resample_rows(pixels_of(in), axis, scratch.rows.data(), stride);
  return {scratch.rows.data(), in.height, axis.count, in.channels, stride, in.channels};
}

}  // namespace

int64_t ScaledSide::first(int64_t i) const {
  const Triangle triangle(*this);
  return triangle.first(triangle.center(i));
}

int64_t ScaledSide::last(int64_t i) const {
  const Triangle triangle(*this);
  return triangle.last(triangle.center(i));
}

ImageView resample(const ImageView& image, Origin cut, const ScaledSide& rows, const ScaledSide& columns,
                   const io::ImageRegion& window, Scratch& scratch) {
  const ImageView in = forward(image, scratch);
  const int64_t bottom = window.y + window.height, c = in.channels;
  const int64_t top_row = rows.plain() ? window.y : rows.first(window.y);
  const int64_t end_row = rows.plain() ? bottom : rows.last(bottom - 1);
  TORCH_CHECK_VALUE(end_row - top_row <= io::kMaxImagePixels / window.width,
                    "resize: the intermediate image for a resize from ", rows.pixels, " x ", columns.pixels, " to ",
                    window.height, " x ", window.width, " would have ", end_row - top_row, " x ", window.width,
                    " pixels, but the limit is ", io::kMaxImagePixels, " pixels.");
  ImageView part = in;
  part.height = end_row - top_row;
  part.pixels = in.pixels + (cut.y + top_row) * in.row_stride;
  if (columns.plain()) {
    part.pixels += (cut.x + window.x) * c;
    part.width = window.width;
  } else {
    const auto axis = weights_of(columns, window.x, window.x + window.width, cut.x, scratch.columns);
    part = rows_resampled(part, axis, scratch);
  }
  uint8_t* out = scratch.next(static_cast<size_t>(window.height * window.width * c));
  const ImageView result{out, window.height, window.width, c, window.width * c, c};
  if (rows.plain()) {
    part.copy_to(out, result.row_stride);
  } else {
    const auto axis = weights_of(rows, window.y, bottom, -top_row, scratch.rows_axis);
    kernels::resample_columns(pixels_of(part), axis, out);
  }
  return result;
}

}  // namespace bellows::data
