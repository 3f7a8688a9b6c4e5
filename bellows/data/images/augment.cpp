#include "bellows/data/images/augment.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "bellows/data/images/image_ops.h"
#include "bellows/data/images/random_draw.h"
#include "bellows/io/images/image.h"

namespace bellows::data {

namespace {

std::pair<double, double> factors_around_one(double amount) {
  return {std::max(0.0, 1.0 - amount), 1.0 + amount};
}

void check_amount(const char* name, double amount, double most) {
  TORCH_CHECK_VALUE(amount >= 0 && amount <= most, "color_jitter: expected ", name, " of at least 0 and at most ", most,
                    ", got ", amount, ".");
}

void check_jitter(const char* name, std::pair<double, double> range, double least, double most) {
  TORCH_CHECK_VALUE(range.first >= least && range.second >= range.first && range.second <= most,
                    "color_jitter: expected a range of ", name, " with ", least, " <= least <= most <= ", most,
                    ", got ", range.first, " and ", range.second, ".");
}

bool changes_colors(std::pair<double, double> range, double unchanged) {
  return range != std::pair(unchanged, unchanged);
}

}  // namespace

Transform color_jitter(const ColorJitter& amounts) {
  for (const auto& [name, amount] :
       {std::pair("brightness", amounts.brightness), std::pair("contrast", amounts.contrast),
        std::pair("saturation", amounts.saturation)})
    check_amount(name, amount, 1e6);
  check_amount("hue", amounts.hue, 0.5);
  return color_jitter_between(ColorJitterRanges{factors_around_one(amounts.brightness),
                                                factors_around_one(amounts.contrast),
                                                factors_around_one(amounts.saturation),
                                                {-amounts.hue, amounts.hue}});
}

ColorJitterDraw draw_color_jitter(const ColorJitterRanges& ranges, RandomStream& random) {
  ColorJitterDraw drawn;
  for (size_t i = drawn.order.size(); i > 1; --i) std::swap(drawn.order[i - 1], drawn.order[random.below(i)]);
  drawn.brightness = draw_between(random, ranges.brightness.first, ranges.brightness.second);
  drawn.contrast = draw_between(random, ranges.contrast.first, ranges.contrast.second);
  drawn.saturation = draw_between(random, ranges.saturation.first, ranges.saturation.second);
  const double middle = (ranges.hue.first + ranges.hue.second) / 2, reach = (ranges.hue.second - ranges.hue.first) / 2;
  drawn.hue = middle + reach * (2 * random.uniform() - 1);
  return drawn;
}

Transform color_jitter_between(const ColorJitterRanges& ranges) {
  for (const auto& [name, range] : {std::pair("brightness", ranges.brightness), std::pair("contrast", ranges.contrast),
                                    std::pair("saturation", ranges.saturation)})
    check_jitter(name, range, 0, 1e7);
  check_jitter("hue", ranges.hue, -0.5, 0.5);
  return {[ranges](const ImageView& image, Scratch& scratch, RandomStream& random) {
    const ColorJitterDraw drawn = draw_color_jitter(ranges, random);
    ImageView result = image;
    for (const int step : drawn.order) {
      if (step == 0 && changes_colors(ranges.brightness, 1))
        result = adjust_brightness(result, drawn.brightness, scratch);
      if (step == 1 && changes_colors(ranges.contrast, 1)) result = adjust_contrast(result, drawn.contrast, scratch);
      if (step == 2 && changes_colors(ranges.saturation, 1))
        result = adjust_saturation(result, drawn.saturation, scratch);
      if (step == 3 && changes_colors(ranges.hue, 0)) result = adjust_hue(result, drawn.hue, scratch);
    }
    return result;
  }};
}

Transform random_vertical_flip(double p) {
  check_probability("random_vertical_flip", p);
  return {[p](const ImageView& image, Scratch&, RandomStream& random) {
    ImageView result = image;
    if (image.height == 0 || random.uniform() >= p) return result;
    result.pixels = image.at(image.height - 1, 0);
    result.row_stride = -image.row_stride;
    return result;
  }};
}

Transform random_grayscale(double p) {
  check_probability("random_grayscale", p);
  return {[p](const ImageView& image, Scratch& scratch, RandomStream& random) {
    return random.uniform() < p ? to_grayscale(image, scratch) : image;
  }};
}

namespace {

/// A copy of `image` with one part filled.
ImageView with_filled(const ImageView& image, const io::ImageRegion& part, const std::vector<uint8_t>& fill,
                      Scratch& scratch) {
  const int64_t c = image.channels, row = image.width * c;
  TORCH_CHECK_VALUE(fill.size() == 1 || static_cast<int64_t>(fill.size()) == c, "fill: expected one value or ", c,
                    ", one for each channel, got ", fill.size(), ".");
  uint8_t* out = scratch.next(static_cast<size_t>(image.height * row));
  image.copy_to(out, row);
  for (int64_t y = part.y; y < part.y + part.height; ++y) {
    uint8_t* to = out + y * row + part.x * c;
    for (int64_t i = 0; i < part.width * c; ++i) to[i] = fill[fill.size() == 1 ? 0 : static_cast<size_t>(i % c)];
  }
  return {out, image.height, image.width, c, row, c};
}

void check_erasing(const char* name, std::pair<double, double> range, double most) {
  TORCH_CHECK_VALUE(range.first > 0 && range.second >= range.first && range.second <= most, "random_erasing: expected ",
                    name, " with 0 < least <= most <= ", most, ", got ", range.first, " and ", range.second, ".");
}

/// Returns an empty region if ten tries fail.
io::ImageRegion draw_erased(const ImageView& image, std::pair<double, double> scale, std::pair<double, double> ratio,
                            RandomStream& random) {
  const double area = static_cast<double>(image.height) * static_cast<double>(image.width);
  for (int tries = 0; tries < 10; ++tries) {
    const double target = area * draw_between(random, scale.first, scale.second);
    const double shape = std::exp(draw_between(random, std::log(ratio.first), std::log(ratio.second)));
    const double h = std::nearbyint(std::sqrt(target * shape)), w = std::nearbyint(std::sqrt(target / shape));
    if (!(h < static_cast<double>(image.height) && w < static_cast<double>(image.width))) continue;
    const auto rows = static_cast<int64_t>(h), columns = static_cast<int64_t>(w);
    const int64_t y = draw_below(random, image.height - rows + 1), x = draw_below(random, image.width - columns + 1);
    return {y, x, rows, columns};
  }
  return {};
}

}  // namespace

Transform random_erasing(double p, std::pair<double, double> scale, std::pair<double, double> ratio,
                         std::vector<uint8_t> fill) {
  check_probability("random_erasing", p);
  check_erasing("scale", scale, 1.0);
  check_erasing("ratio", ratio, 1e9);
  return {[p, scale, ratio, fill = std::move(fill)](const ImageView& image, Scratch& scratch, RandomStream& random) {
    if (random.uniform() >= p) return image;
    const io::ImageRegion part = draw_erased(image, scale, ratio, random);
    return part.height == 0 || part.width == 0 ? image : with_filled(image, part, fill, scratch);
  }};
}

Transform cutout(int64_t side, std::vector<uint8_t> fill) {
  TORCH_CHECK_VALUE(side > 0 && side <= kMaxImageSide, "cutout: expected a side from 1 to ", kMaxImageSide, ", got ",
                    side, ".");
  return {[side, fill = std::move(fill)](const ImageView& image, Scratch& scratch, RandomStream& random) {
    const int64_t top = draw_below(random, image.height) - side / 2;
    const int64_t left = draw_below(random, image.width) - side / 2;
    const int64_t y = std::max<int64_t>(0, top), x = std::max<int64_t>(0, left);
    const io::ImageRegion part{y, x, std::min(image.height, top + side) - y, std::min(image.width, left + side) - x};
    return part.height <= 0 || part.width <= 0 ? image : with_filled(image, part, fill, scratch);
  }};
}

namespace {

constexpr int kStrengths = 31;

/// torch.linspace(first, last, 31)[i], which computes in float from the nearer end.
double strength(double first, double last, int i) {
  const auto start = static_cast<float>(first), end = static_cast<float>(last);
  const float step = (end - start) / static_cast<float>(kStrengths - 1);
  return i < kStrengths / 2 ? start + step * static_cast<float>(i)
                            : end - step * static_cast<float>(kStrengths - 1 - i);
}

double reach(int64_t side, int magnitude) {
  return strength(0, 150.0 / 331.0 * static_cast<double>(side), magnitude);
}

}  // namespace

ImageView apply_augment(const ImageView& image, AugmentOp op, int magnitude, bool negative, Scratch& scratch) {
  const double sign = negative ? -1.0 : 1.0, factor = 1.0 + sign * strength(0, 0.9, magnitude);
  switch (op) {
    case AugmentOp::identity:
      return image;
    case AugmentOp::shear_x:
      return shear_x(image, sign * strength(0, 0.3, magnitude), scratch);
    case AugmentOp::shear_y:
      return shear_y(image, sign * strength(0, 0.3, magnitude), scratch);
    case AugmentOp::translate_x:
      return translate(image, static_cast<int64_t>(sign * reach(image.width, magnitude)), 0, scratch);
    case AugmentOp::translate_y:
      return translate(image, 0, static_cast<int64_t>(sign * reach(image.height, magnitude)), scratch);
    case AugmentOp::rotate:
      return rotate(image, sign * strength(0, 30, magnitude), scratch);
    case AugmentOp::brightness:
      return adjust_brightness(image, factor, scratch);
    case AugmentOp::color:
      return adjust_saturation(image, factor, scratch);
    case AugmentOp::contrast:
      return adjust_contrast(image, factor, scratch);
    case AugmentOp::sharpness:
      return adjust_sharpness(image, factor, scratch);
    case AugmentOp::posterize:
      return posterize(image, 8 - static_cast<int>(std::nearbyint(magnitude / ((kStrengths - 1) / 4.0))), scratch);
    case AugmentOp::solarize:
      return solarize(image, strength(255, 0, magnitude), scratch);
    case AugmentOp::autocontrast:
      return autocontrast(image, scratch);
    case AugmentOp::equalize:
      return equalize(image, scratch);
  }
  return image;
}

Transform rand_augment(int ops, int magnitude) {
  TORCH_CHECK_VALUE(ops >= 0 && ops <= 100, "rand_augment: expected 0 to 100 ops, got ", ops, ".");
  TORCH_CHECK_VALUE(magnitude >= 0 && magnitude < kStrengths, "rand_augment: expected a magnitude in [0, ", kStrengths,
                    "), got ", magnitude, ".");
  return {[=](const ImageView& image, Scratch& scratch, RandomStream& random) {
    ImageView result = image;
    for (int i = 0; i < ops; ++i) {
      const auto op = static_cast<AugmentOp>(random.below(kAugmentOps));
      const bool negative = random.below(2) == 1;
      result = apply_augment(result, op, magnitude, negative, scratch);
    }
    return result;
  }};
}

}  // namespace bellows::data
