#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <utility>

#include "bellows/data/images/augment.h"
#include "bellows/data/images/draw_impl.h"
#include "bellows/data/images/image_ops.h"

namespace bellows::data {

namespace {

double factor_around_one(RandomStream& random, double amount) {
  return draw_between(random, std::max(0.0, 1.0 - amount), 1.0 + amount);
}

void check_amount(const char* name, double amount, double most) {
  TORCH_CHECK_VALUE(amount >= 0 && amount <= most, "color_jitter: expected ", name, " of at least 0 and at most ", most,
                    ", got ", amount, ".");
}

}  // namespace

Transform color_jitter(const ColorJitter& amounts) {
  for (const auto& [name, amount] :
       {std::pair("brightness", amounts.brightness), std::pair("contrast", amounts.contrast),
        std::pair("saturation", amounts.saturation)})
    check_amount(name, amount, 1e6);
  check_amount("hue", amounts.hue, 0.5);
  return {[amounts](const ImageView& image, Scratch& scratch, RandomStream& random) {
    std::array<int, 4> order{0, 1, 2, 3};
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    const double brightness = factor_around_one(random, amounts.brightness);
    const double contrast = factor_around_one(random, amounts.contrast);
    const double saturation = factor_around_one(random, amounts.saturation);
    const double turn = amounts.hue * (2 * random.uniform() - 1);
    ImageView result = image;
    for (const int step : order) {
      if (step == 0 && amounts.brightness > 0) result = adjust_brightness(result, brightness, scratch);
      if (step == 1 && amounts.contrast > 0) result = adjust_contrast(result, contrast, scratch);
      if (step == 2 && amounts.saturation > 0) result = adjust_saturation(result, saturation, scratch);
      if (step == 3 && amounts.hue > 0) result = adjust_hue(result, turn, scratch);
    }
    return result;
  }};
}

Transform random_grayscale(double p) {
  check_probability("random_grayscale", p);
  return {[p](const ImageView& image, Scratch& scratch, RandomStream& random) {
    return random.uniform() < p ? to_grayscale(image, scratch) : image;
  }};
}

}  // namespace bellows::data
