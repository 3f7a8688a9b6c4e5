#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "bellows/data/images/draw_impl.h"
#include "bellows/data/images/placement.h"

namespace bellows::data {

namespace {

/// As Python rounds: halves to even.
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

}  // namespace bellows::data
