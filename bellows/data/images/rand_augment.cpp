#include <c10/util/Exception.h>

#include <cmath>

#include "bellows/data/images/augment.h"
#include "bellows/data/images/image_ops.h"

namespace bellows::data {

namespace {

constexpr int kStrengths = 31;

/// torch.linspace(first, last, 31)[i], which counts in floats from the nearer end.
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
