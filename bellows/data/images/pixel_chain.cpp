#include "bellows/data/images/pixel_chain.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>

namespace bellows::data {

namespace {

uint8_t to_byte(float value) {
  return static_cast<uint8_t>(std::min(std::max(0.0f, std::nearbyint(value)), 255.0f));  // NaN: 0
}

template <class T, class F>
void store_values(const detail::PixelBlock& block, const ImageView& image, int64_t y, int64_t x, int64_t count,
                  bool channels_last, T* out, const F& convert) {
  const int64_t c_step = channels_last ? 1 : image.height * image.width, step = channels_last ? image.channels : 1;
  for (int64_t c = 0; c < image.channels; ++c) {
    T* to = out + c * c_step + (y * image.width + x) * step;
    const float* from = block[static_cast<size_t>(c)].data();
    for (int64_t i = 0; i < count; ++i) to[i * step] = convert(from[i]);
  }
}

}  // namespace

void detail::check_chain(const ImageView& image, bool needs_three) {
  TORCH_CHECK_VALUE(image.channels == 3 || (image.channels == 1 && !needs_three),
                    "pixel_chain: expected an image with ", needs_three ? "3 channels" : "1 or 3 channels", ", got ",
                    image.channels, ".");
}

void detail::load_block(const ImageView& image, int64_t y, int64_t x, int64_t count, PixelBlock& block) {
  for (int64_t c = 0; c < image.channels; ++c) {
    const uint8_t* from = image.at(y, x) + c;
    float* to = block[static_cast<size_t>(c)].data();
    for (int64_t i = 0; i < count; ++i) to[i] = from[i * image.pixel_stride];
  }
}

void detail::store_block(const PixelBlock& block, const ImageView& image, int64_t y, int64_t x, int64_t count,
                         const PixelOutput& out) {
  if (out.dtype == c10::ScalarType::Byte) {
    store_values(block, image, y, x, count, out.channels_last, static_cast<uint8_t*>(out.data), to_byte);
  } else if (out.dtype == c10::ScalarType::BFloat16) {
    store_values(block, image, y, x, count, out.channels_last, static_cast<c10::BFloat16*>(out.data),
                 [](float value) { return c10::BFloat16(value); });
  } else {
    store_values(block, image, y, x, count, out.channels_last, static_cast<float*>(out.data),
                 [](float value) { return value; });
  }
}

float RandomContrast::mean_of(const ImageView& image) {
  uint64_t sum = 0;
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < image.width; ++x) {
      for (int64_t c = 0; c < image.channels; ++c) sum += image.at(y, x)[c];
    }
  }
  return static_cast<float>(static_cast<double>(sum) /
                            static_cast<double>(image.height * image.width * image.channels));
}

}  // namespace bellows::data
