#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "bellows/data/transform.h"
#include "bellows/io/image.h"

// Pillow's separable resampling for 8-bit pixels: triangle filter stretched by the scale, weights in 22-bit fixed
// point, the result of each pass rounded and clamped to 8 bits. The order of passes (first along rows) and all
// roundings are Pillow's.

namespace bellows::data {

namespace {

constexpr int kPrecision = 32 - 8 - 2;

uint8_t to_8_bits(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kPrecision, 0, 255));
}

/// For each of `out` positions: the first input position and the count in scratch.bounds, the weights in
/// scratch.weights. Returns the room for weights per position.
size_t compute_weights(int64_t in, int64_t out, Scratch& scratch) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double support = std::max(scale, 1.0);
  const size_t room = static_cast<size_t>(std::ceil(support)) * 2 + 1;
  scratch.bounds.resize(static_cast<size_t>(out) * 2);
  scratch.weights.resize(static_cast<size_t>(out) * room);
  std::vector<double> exact(room);
  for (size_t i = 0; i < static_cast<size_t>(out); ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const auto first = static_cast<int32_t>(std::max(center - support + 0.5, 0.0));
    const auto last = static_cast<int32_t>(std::min(center + support + 0.5, static_cast<double>(in)));
    double sum = 0;
    for (int32_t x = first; x < last; ++x) {
      const double weight = std::max(0.0, 1.0 - std::abs((x - center + 0.5) * (1.0 / support)));
      exact[static_cast<size_t>(x - first)] = weight;
      sum += weight;
    }
    scratch.bounds[2 * i] = first;
    scratch.bounds[2 * i + 1] = last - first;
    for (size_t k = 0; k < static_cast<size_t>(last - first); ++k) {
      scratch.weights[i * room + k] = static_cast<int32_t>(0.5 + exact[k] / sum * (1 << kPrecision));
    }
  }
  return room;
}

void resize_rows(const ImageView& in, int64_t width, Scratch& scratch, uint8_t* out) {
  const size_t room = compute_weights(in.width, width, scratch);
  for (int64_t y = 0; y < in.height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const int32_t* weights = scratch.weights.data() + static_cast<size_t>(x) * room;
      const int32_t count = scratch.bounds[static_cast<size_t>(2 * x) + 1];
      const uint8_t* pixels = in.at(y, scratch.bounds[static_cast<size_t>(2 * x)]);
      for (int64_t c = 0; c < in.channels; ++c) {
        int32_t sum = 1 << (kPrecision - 1);
        for (int32_t k = 0; k < count; ++k) sum += pixels[k * in.pixel_stride + c] * weights[k];
        *out++ = to_8_bits(sum);
      }
    }
  }
}

void resize_columns(const ImageView& in, int64_t height, Scratch& scratch, uint8_t* out) {
  const size_t room = compute_weights(in.height, height, scratch);
  for (int64_t y = 0; y < height; ++y) {
    const int32_t* weights = scratch.weights.data() + static_cast<size_t>(y) * room;
    const int32_t first = scratch.bounds[static_cast<size_t>(2 * y)],
                  count = scratch.bounds[static_cast<size_t>(2 * y) + 1];
    for (int64_t x = 0; x < in.width; ++x) {
      const uint8_t* pixels = in.at(first, x);
      for (int64_t c = 0; c < in.channels; ++c) {
        int32_t sum = 1 << (kPrecision - 1);
        for (int32_t k = 0; k < count; ++k) sum += pixels[k * in.row_stride + c] * weights[k];
        *out++ = to_8_bits(sum);
      }
    }
  }
}

ImageView packed(const uint8_t* pixels, int64_t height, int64_t width, int64_t channels) {
  return {pixels, height, width, channels, width * channels, channels};
}

ImageView resize_image(ImageView image, int64_t height, int64_t width, Scratch& scratch) {
  if (image.width != width) {
    TORCH_CHECK_VALUE(image.height <= io::kMaxImagePixels / width, "resize: a picture of ", image.height, " x ",
                      image.width, " becomes ", image.height, " x ", width, " on its way to ", height, " x ", width,
                      "; at most ", io::kMaxImagePixels, " pixels are allowed.");
    scratch.rows.resize(static_cast<size_t>(image.height * width * image.channels));
    resize_rows(image, width, scratch, scratch.rows.data());
    image = packed(scratch.rows.data(), image.height, width, image.channels);
  }
  if (image.height != height || image.pixels == scratch.rows.data()) {
    uint8_t* out = scratch.next(static_cast<size_t>(height * width * image.channels));
    if (image.height != height) {
      resize_columns(image, height, scratch, out);
    } else {
      std::copy_n(image.pixels, height * width * image.channels, out);
    }
    image = packed(out, height, width, image.channels);
  }
  return image;
}

}  // namespace

Transform resize(int64_t height, int64_t width) {
  check_image_sides("resize", height, width);
  return {[=](const ImageView& image, Scratch& scratch, RandomStream&) {
            return resize_image(image, height, width, scratch);
          },
          true};
}

Transform resize_shorter(int64_t side) {
  TORCH_CHECK_VALUE(side > 0 && side <= kMaxImageSide, "resize_shorter: expected a side from 1 to ", kMaxImageSide,
                    ", got ", side, ".");
  return {[=](const ImageView& image, Scratch& scratch, RandomStream&) {
            const bool tall = image.height > image.width;
            const int64_t longer = side * (tall ? image.height : image.width) / (tall ? image.width : image.height);
            check_image_sides("resize_shorter", tall ? longer : side, tall ? side : longer);
            return resize_image(image, tall ? longer : side, tall ? side : longer, scratch);
          },
          true};
}

}  // namespace bellows::data
