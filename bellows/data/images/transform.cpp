#include "bellows/data/images/transform.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "bellows/data/images/draw_impl.h"
#include "bellows/data/images/placement.h"
#include "bellows/kernels/pixels.h"

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

/// The part of `image` at (y, x), which may reach over its edges; what lies outside is `fill`.
ImageView cut_filled(const ImageView& image, int64_t y, int64_t x, int64_t height, int64_t width, uint8_t fill,
                     Scratch& scratch) {
  const int64_t c = image.channels;
  uint8_t* out = scratch.next(static_cast<size_t>(height * width * c));
  std::memset(out, fill, static_cast<size_t>(height * width * c));
  const int64_t y_begin = std::max<int64_t>(0, y), y_end = std::min(y + height, image.height);
  const int64_t x_begin = std::max<int64_t>(0, x), x_end = std::min(x + width, image.width);
  if (y_begin < y_end && x_begin < x_end) {
    const ImageView inside = part_of(image, {y_begin, x_begin, y_end - y_begin, x_end - x_begin});
    inside.copy_to(out + ((y_begin - y) * width + x_begin - x) * c, width * c);
  }
  return {out, height, width, c, width * c, c};
}

void check_crop(const char* name, int64_t image_height, int64_t image_width, int64_t height, int64_t width,
                int64_t padding) {
  TORCH_CHECK_VALUE(image_height + 2 * padding >= height && image_width + 2 * padding >= width, name,
                    ": expected a picture of at least ", height, " x ", width, ", got ", image_height, " x ",
                    image_width, " with padding ", padding, ". Resize before, or pad.");
}

Transform random_crop_unpadded(int64_t height, int64_t width) {
  return placed(
      [=](Placement& placement, RandomStream& random) {
        const io::ImageRegion& image = placement.window;
        check_crop("random_crop", image.height, image.width, height, width, 0);
        const int64_t y = draw_below(random, image.height - height + 1),
                      x = draw_below(random, image.width - width + 1);
        placement.crop({y, x, height, width});
        return true;
      },
      false);
}

}  // namespace

Transform center_crop(int64_t height, int64_t width) {
  check_image_sides("center_crop", height, width);
  return placed(
      [=](Placement& placement, RandomStream&) {
        const io::ImageRegion& image = placement.window;
        check_crop("center_crop", image.height, image.width, height, width, 0);
        // torchvision: int(round(difference / 2)), and Python rounds halves to even
        auto half = [](int64_t difference) { return difference / 2 + (difference % 4 == 3 ? 1 : 0); };
        placement.crop({half(image.height - height), half(image.width - width), height, width});
        return true;
      },
      true);
}

Transform random_crop(int64_t height, int64_t width, int64_t padding, uint8_t fill) {
  check_image_sides("random_crop", height, width);
  TORCH_CHECK_VALUE(padding >= 0 && padding <= kMaxImageSide, "random_crop: expected a padding from 0 to ",
                    kMaxImageSide, ", got ", padding, ".");
  if (padding == 0) return random_crop_unpadded(height, width);
  return {[=](const ImageView& image, Scratch& scratch, RandomStream& random) {
    check_crop("random_crop", image.height, image.width, height, width, padding);
    const int64_t y = draw_below(random, image.height + 2 * padding - height + 1) - padding;
    const int64_t x = draw_below(random, image.width + 2 * padding - width + 1) - padding;
    return cut_filled(image, y, x, height, width, fill, scratch);
  }};
}

Transform random_flip(double p) {
  check_probability("random_flip", p);
  return placed(
      [=](Placement& placement, RandomStream& random) {
        if (random.uniform() < p) placement.mirrored = !placement.mirrored;
        return true;
      },
      false);
}

Normalizer::Normalizer(const std::vector<double>& mean, const std::vector<double>& std, int64_t channels) {
  auto fits = [&](const std::vector<double>& values) {
    return values.empty() || values.size() == 1 || static_cast<int64_t>(values.size()) == channels;
  };
  TORCH_CHECK_VALUE(fits(mean) && fits(std), "normalize: expected one mean and std, or one for each of ", channels,
                    " channels, got ", mean.size(), " and ", std.size(), ".");
  TORCH_CHECK_VALUE(std::all_of(std.begin(), std.end(), [](double s) { return s > 0; }),
                    "normalize: expected every std to be positive.");
  std::vector<float> means, stds;
  for (size_t c = 0; c < static_cast<size_t>(channels); ++c) {
    means.push_back(mean.empty() ? 0.0f : static_cast<float>(mean[mean.size() == 1 ? 0 : c]));
    stds.push_back(std.empty() ? 1.0f : static_cast<float>(std[std.size() == 1 ? 0 : c]));
  }
  scale_ = std::make_shared<const kernels::PixelScale>(std::move(means), std::move(stds));
}

void Normalizer::run(const ImageView& image, void* out, bool channels_last, c10::ScalarType type) const {
  const auto pixel_type = type == c10::ScalarType::Byte       ? kernels::PixelType::u8
                          : type == c10::ScalarType::BFloat16 ? kernels::PixelType::bf16
                                                              : kernels::PixelType::f32;
  kernels::write_pixels({image.pixels, image.height, image.width, image.channels, image.row_stride, image.pixel_stride},
                        *scale_, pixel_type, channels_last, out);
}

}  // namespace bellows::data
