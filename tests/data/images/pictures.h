#pragma once

#include "bellows/data/images/transform.h"
#include "tests/data/support.h"

namespace bellows::data::testing {

/// Params: image – uint8 [H, W, C], contiguous
inline ImageView view_of(const at::Tensor& image) {
  const int64_t h = image.size(0), w = image.size(1), c = image.size(2);
  return {image.const_data_ptr<uint8_t>(), h, w, c, w * c, c};
}

inline std::vector<uint8_t> pixels_of(const ImageView& image) {
  std::vector<uint8_t> pixels;
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < image.width; ++x)
      pixels.insert(pixels.end(), image.at(y, x), image.at(y, x) + image.channels);
  }
  return pixels;
}

inline std::vector<uint8_t> pixels_of(const at::Tensor& image) {
  return pixels_of(view_of(image));
}

}  // namespace bellows::data::testing
