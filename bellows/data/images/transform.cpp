#include "bellows/data/images/transform.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "bellows/data/images/placement.h"
#include "bellows/data/images/random_draw.h"
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

/// The part of `image` at (y, x), which may extend over the edges; pixels outside are `fill`.
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
                    ": expected an image of at least ", height, " x ", width, ", got ", image_height, " x ",
                    image_width, " with padding ", padding, ". Resize the image first, or set a larger padding.");
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

Transform resize(int64_t height, int64_t width) {
  check_image_sides("resize", height, width);
  return placed([=](Placement& placement, RandomStream&) { return placement.scale(height, width); }, true);
}

Transform resize_shorter(int64_t side) {
  TORCH_CHECK_VALUE(side > 0 && side <= kMaxImageSide, "resize_shorter: expected a side from 1 to ", kMaxImageSide,
                    ", got ", side, ".");
  return placed(
      [=](Placement& placement, RandomStream&) {
        const int64_t height = placement.window.height, width = placement.window.width;
        const bool tall = height > width;
        const int64_t longer = side * (tall ? height : width) / (tall ? width : height);
        check_image_sides("resize_shorter", tall ? longer : side, tall ? side : longer);
        return placement.scale(tall ? longer : side, tall ? side : longer);
      },
      true);
}

Transform center_crop(int64_t height, int64_t width) {
  check_image_sides("center_crop", height, width);
  return placed(
      [=](Placement& placement, RandomStream&) {
        const io::ImageRegion& image = placement.window;
        check_crop("center_crop", image.height, image.width, height, width, 0);
        // torchvision: int(round(difference / 2)); Python rounds halves to even
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

namespace {

/// Rounds like Python: halves to even.
int64_t rounded(double value) {
  return static_cast<int64_t>(std::nearbyint(value));
}

io::ImageRegion middle(int64_t height, int64_t width, std::pair<double, double> ratio) {
  const double own = static_cast<double>(width) / static_cast<double>(height);
  int64_t h = height, w = width;
  if (own < ratio.first) h = std::clamp<int64_t>(rounded(static_cast<double>(width) / ratio.first), 1, height);
  if (own > ratio.second) w = std::clamp<int64_t>(rounded(static_cast<double>(height) * ratio.second), 1, width);
  return {(height - h) / 2, (width - w) / 2, h, w};
}

void check_range(const char* name, std::pair<double, double> range) {
  TORCH_CHECK_VALUE(range.first > 0 && range.second >= range.first && std::isfinite(range.second),
                    "random_resized_crop: expected ", name, " with 0 < least <= most, got ", range.first, " and ",
                    range.second, ".");
}

}  // namespace

io::ImageRegion draw_resized_crop(int64_t height, int64_t width, std::pair<double, double> scale,
                                  std::pair<double, double> ratio, RandomStream& random) {
  const double area = static_cast<double>(height) * static_cast<double>(width);
  for (int tries = 0; tries < 10; ++tries) {
    const double target = area * draw_between(random, scale.first, scale.second);
    const double shape = std::exp(draw_between(random, std::log(ratio.first), std::log(ratio.second)));
    const double w = std::nearbyint(std::sqrt(target * shape)), h = std::nearbyint(std::sqrt(target / shape));
    if (!(w > 0 && w <= static_cast<double>(width) && h > 0 && h <= static_cast<double>(height))) continue;
    const auto rows = static_cast<int64_t>(h), columns = static_cast<int64_t>(w);
    const int64_t y = draw_below(random, height - rows + 1), x = draw_below(random, width - columns + 1);
    return {y, x, rows, columns};
  }
  return middle(height, width, ratio);
}

Transform random_resized_crop(int64_t height, int64_t width, std::pair<double, double> scale,
                              std::pair<double, double> ratio) {
  check_image_sides("random_resized_crop", height, width);
  check_range("scale", scale);
  check_range("ratio", ratio);
  return placed(
      [=](Placement& placement, RandomStream& random) {
        Placement cut = placement;
        cut.crop(draw_resized_crop(cut.window.height, cut.window.width, scale, ratio, random));
        if (!cut.scale(height, width)) return false;
        placement = cut;
        return true;
      },
      false);
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
