#include "bellows/data/transform.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "bellows/io/image.h"

namespace bellows::data {

void check_image_sides(const char* what, int64_t height, int64_t width) {
  const bool fits = height > 0 && width > 0 && height <= kMaxImageSide && width <= kMaxImageSide;
  TORCH_CHECK_VALUE(fits && height * width <= io::kMaxImagePixels, what, ": expected a height and width from 1 to ",
                    kMaxImageSide, " with at most ", io::kMaxImagePixels, " pixels, got ", height, " x ", width, ".");
}

void ImageView::copy_to(uint8_t* out, int64_t out_row_stride) const {
  for (int64_t y = 0; y < height; ++y, out += out_row_stride) {
    if (pixel_stride == channels) {
      std::memcpy(out, at(y, 0), static_cast<size_t>(width * channels));
      continue;
    }
    for (int64_t x = 0; x < width; ++x) std::copy_n(at(y, x), channels, out + x * channels);
  }
}

uint8_t* Scratch::next(size_t bytes) {
  turn_ = 1 - turn_;
  if (turns_[turn_].size() < bytes) turns_[turn_].resize(bytes);
  return turns_[turn_].data();
}

namespace {

ImageView cut(const ImageView& image, int64_t y, int64_t x, int64_t height, int64_t width) {
  ImageView part = image;
  part.pixels = image.at(y, x);
  part.height = height;
  part.width = width;
  return part;
}

/// The part of `image` at (y, x), which may reach over its edges; what lies outside is `fill`.
ImageView cut_filled(const ImageView& image, int64_t y, int64_t x, int64_t height, int64_t width, uint8_t fill,
                     Scratch& scratch) {
  const int64_t c = image.channels;
  uint8_t* out = scratch.next(static_cast<size_t>(height * width * c));
  std::memset(out, fill, static_cast<size_t>(height * width * c));
  const int64_t y_begin = std::max<int64_t>(0, y), y_end = std::min(y + height, image.height);
  const int64_t x_begin = std::max<int64_t>(0, x), x_end = std::min(x + width, image.width);
  if (y_begin < y_end && x_begin < x_end) {
    const ImageView inside = cut(image, y_begin, x_begin, y_end - y_begin, x_end - x_begin);
    inside.copy_to(out + ((y_begin - y) * width + x_begin - x) * c, width * c);
  }
  return {out, height, width, c, width * c, c};
}

void check_crop(const char* name, const ImageView& image, int64_t height, int64_t width, int64_t padding) {
  TORCH_CHECK_VALUE(image.height + 2 * padding >= height && image.width + 2 * padding >= width, name,
                    ": expected a picture of at least ", height, " x ", width, ", got ", image.height, " x ",
                    image.width, " with padding ", padding, ". Resize before, or pad.");
}

}  // namespace

Transform center_crop(int64_t height, int64_t width) {
  check_image_sides("center_crop", height, width);
  return {[=](const ImageView& image, Scratch&, RandomStream&) {
            check_crop("center_crop", image, height, width, 0);
            // torchvision: int(round(difference / 2)), and Python rounds halves to even
            auto half = [](int64_t difference) { return difference / 2 + (difference % 4 == 3 ? 1 : 0); };
            return cut(image, half(image.height - height), half(image.width - width), height, width);
          },
          true};
}

Transform random_crop(int64_t height, int64_t width, int64_t padding, uint8_t fill) {
  check_image_sides("random_crop", height, width);
  TORCH_CHECK_VALUE(padding >= 0 && padding <= kMaxImageSide, "random_crop: expected a padding from 0 to ",
                    kMaxImageSide, ", got ", padding, ".");
  return {[=](const ImageView& image, Scratch& scratch, RandomStream& random) {
    check_crop("random_crop", image, height, width, padding);
    const auto y =
        static_cast<int64_t>(random.below(static_cast<uint64_t>(image.height + 2 * padding - height) + 1)) - padding;
    const auto x =
        static_cast<int64_t>(random.below(static_cast<uint64_t>(image.width + 2 * padding - width) + 1)) - padding;
    const bool inside = y >= 0 && x >= 0 && y + height <= image.height && x + width <= image.width;
    return inside ? cut(image, y, x, height, width) : cut_filled(image, y, x, height, width, fill, scratch);
  }};
}

Transform random_flip(double p) {
  TORCH_CHECK_VALUE(p >= 0 && p <= 1, "random_flip: expected a probability in [0, 1], got ", p, ".");
  return {[=](const ImageView& image, Scratch&, RandomStream& random) {
    if (random.uniform() >= p) return image;
    ImageView mirrored = image;
    mirrored.pixels = image.at(0, image.width - 1);
    mirrored.pixel_stride = -image.pixel_stride;
    return mirrored;
  }};
}

Normalizer::Normalizer(const std::vector<double>& mean, const std::vector<double>& std, int64_t channels) {
  auto fits = [&](const std::vector<double>& values) {
    return values.empty() || values.size() == 1 || static_cast<int64_t>(values.size()) == channels;
  };
  TORCH_CHECK_VALUE(fits(mean) && fits(std), "normalize: expected one mean and std, or one for each of ", channels,
                    " channels, got ", mean.size(), " and ", std.size(), ".");
  TORCH_CHECK_VALUE(std::all_of(std.begin(), std.end(), [](double s) { return s > 0; }),
                    "normalize: expected every std to be positive.");
  auto of_channel = [](const std::vector<double>& values, size_t c, double otherwise) {
    return values.empty() ? otherwise : values[values.size() == 1 ? 0 : c];
  };
  table_.resize(static_cast<size_t>(channels));
  for (size_t c = 0; c < table_.size(); ++c) {
    const auto m = static_cast<float>(of_channel(mean, c, 0)), s = static_cast<float>(of_channel(std, c, 1));
    for (size_t value = 0; value < 256; ++value) table_[c][value] = (static_cast<float>(value) / 255.0f - m) / s;
  }
}

void Normalizer::run(const ImageView& image, float* out, bool channels_last) const {
  const int64_t channels = image.channels, pixel_out = channels_last ? channels : 1;
  const int64_t plane = channels_last ? 1 : image.height * image.width;
  for (int64_t c = 0; c < channels; ++c) {
    const float* table = table_[static_cast<size_t>(c)].data();
    float* to = out + c * plane;
    for (int64_t y = 0; y < image.height; ++y) {
      const uint8_t* from = image.at(y, 0) + c;
      for (int64_t x = 0; x < image.width; ++x, from += image.pixel_stride, to += pixel_out) *to = table[*from];
    }
  }
}

}  // namespace bellows::data
