#pragma once

#include "bellows/data/images/transform.h"

#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace bellows::data {

/// Strengths for color_jitter(). For a strength x, the factor for brightness, contrast or saturation is drawn from
/// [max(0, 1 - x), 1 + x]. The hue shift is drawn from [-x, x].
struct ColorJitter {
  double brightness = 0, contrast = 0, saturation = 0;
  double hue = 0;  ///< at most 0.5
};

/// Changes brightness, contrast, saturation and hue by random amounts, in random order. Steps with a strength of 0 are
/// skipped.
/// Numerics: see the adjust_… functions in image_ops.h
/// Throws:   c10::ValueError if a strength is negative or above 1e6, or if hue is above 0.5
/// Ref:      torchvision.transforms.ColorJitter
Transform color_jitter(const ColorJitter& amounts);

/// Ranges for color_jitter(). A factor of 1 and a hue shift of 0 do not change the image.
struct ColorJitterRanges {
  std::pair<double, double> brightness = {1, 1}, contrast = {1, 1}, saturation = {1, 1};  ///< factors of at least 0
  std::pair<double, double> hue = {0, 0};                                                 ///< shifts from -0.5 to 0.5
};

/// The random numbers that color_jitter_between() draws for an image.
struct ColorJitterDraw {
  std::array<int, 4> order = {0, 1, 2, 3};  ///< of brightness (0), contrast (1), saturation (2) and hue (3)
  double brightness = 1, contrast = 1, saturation = 1, hue = 0;
};
ColorJitterDraw draw_color_jitter(const ColorJitterRanges& ranges, RandomStream& random);

/// Like color_jitter(), but each factor and the hue shift are drawn from a range.
/// Throws: c10::ValueError if a range does not satisfy least ≤ most, or if a bound is outside the values above
Transform color_jitter_between(const ColorJitterRanges& ranges);

/// Mirrors the image vertically with probability `p`.
/// Throws: c10::ValueError if p is outside [0, 1]
/// Ref:    torchvision.transforms.RandomVerticalFlip
Transform random_vertical_flip(double p = 0.5);

/// Converts the image to gray with probability `p`. The number of channels does not change.
/// Throws: c10::ValueError if p is outside [0, 1]
/// Ref:    torchvision.transforms.RandomGrayscale
Transform random_grayscale(double p = 0.1);

/// Fills a random rectangle of the image with probability `p`. The area of the rectangle, divided by the area of the
/// image, is drawn from `scale`. The height, divided by the width, is drawn from `ratio`. Up to ten rectangles are
/// drawn until one is smaller than the image. If no rectangle is smaller, the image does not change.
/// Params: fill – one value, or one value per channel; use 255 times the mean to get 0 after normalization
/// Throws: c10::ValueError if p is outside [0, 1]; if the bounds of `scale` or `ratio` do not satisfy 0 < minimum ≤
///         maximum; if the maximum of `scale` is above 1. When the transform runs: c10::ValueError if the length of
///         `fill` is neither 1 nor the number of channels
/// Ref:    torchvision.transforms.RandomErasing, which erases after normalization
Transform random_erasing(double p = 0.5, std::pair<double, double> scale = {0.02, 0.33},
                         std::pair<double, double> ratio = {0.3, 3.3}, std::vector<uint8_t> fill = {0});

/// Fills a square of `side` pixels. The center is drawn from all pixels of the image, and the square is clipped to the
/// image.
/// Throws: c10::ValueError if side is outside [1, kMaxImageSide]. When the transform runs: c10::ValueError if the
///         length of `fill` is neither 1 nor the number of channels
/// Ref:    arXiv:1708.04552
Transform cutout(int64_t side, std::vector<uint8_t> fill = {0});

/// The operations that rand_augment() draws from.
enum class AugmentOp {
  identity,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  rotate,
  brightness,
  color,
  contrast,
  sharpness,
  posterize,
  solarize,
  autocontrast,
  equalize
};
inline constexpr int kAugmentOps = 14;

/// Applies `ops` random operations out of 14, all with the same magnitude. If an operation has a direction, the
/// direction is random.
/// Params:   magnitude – in [0, 31)
/// Numerics: each operation equals torchvision's operation on a PIL image (tests/data/images/augment_test.cpp)
/// Throws:   c10::ValueError if ops is outside [0, 100] or magnitude is out of range
/// Ref:      torchvision.transforms.RandAugment; arXiv:1909.13719
Transform rand_augment(int ops = 2, int magnitude = 9);

/// Applies one operation of rand_augment().
/// Params: magnitude – in [0, 31)
///         negative – selects the opposite direction, if the operation has a direction
ImageView apply_augment(const ImageView& image, AugmentOp op, int magnitude, bool negative, Scratch& scratch);

}  // namespace bellows::data
