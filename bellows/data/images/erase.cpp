#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "bellows/data/images/augment.h"
#include "bellows/data/images/draw_impl.h"
#include "bellows/io/images/image.h"

namespace bellows::data {

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

/// An empty region where ten tries fail.
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

}  // namespace bellows::data
