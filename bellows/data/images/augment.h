#pragma once

#include "bellows/data/images/transform.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace bellows::data {

/// Strengths for color_jitter: factors are drawn from [1 - x, 1 + x], but not below 0; the hue shift is drawn from [-x,
/// x].
struct ColorJitter {
  double brightness = 0, contrast = 0, saturation = 0;
  double hue = 0;  ///< at most 0.5
};

/// Changes brightness, contrast, saturation and hue by random amounts, in random order. Amounts of 0 are skipped.
/// Numerics: each as adjust_… in image_ops.h
/// Throws:   c10::ValueError if an amount is negative or above 1e6, or if hue is above 0.5
/// Ref:      torchvision.transforms.ColorJitter
Transform color_jitter(const ColorJitter& amounts);

/// Converts the image to gray in all channels, with probability `p`.
/// Ref: torchvision.transforms.RandomGrayscale
Transform random_grayscale(double p = 0.1);

/// Fills a random part of the image, with probability `p`. The part's area is `scale` times the image's area, and its
/// height divided by its width is within `ratio`. Ten parts are tried; if none is smaller than the image, nothing is
/// filled.
/// Params: fill – one value, or one per channel: 255 times the mean gives 0 after normalize
/// Throws: c10::ValueError if p is outside [0, 1]; unless 0 < least ≤ most for scale and ratio; if scale is above 1.
///         When run: if fill has another number of channels
/// Ref:    torchvision.transforms.RandomErasing, which erases after normalizing
Transform random_erasing(double p = 0.5, std::pair<double, double> scale = {0.02, 0.33},
                         std::pair<double, double> ratio = {0.3, 3.3}, std::vector<uint8_t> fill = {0});

/// Fills a square of `side` pixels. Its center is anywhere in the image; parts outside the image are clipped.
/// Throws: c10::ValueError if side is outside [1, kMaxImageSide]. When run: if fill has another number of channels
/// Ref:    arXiv:1708.04552
Transform cutout(int64_t side, std::vector<uint8_t> fill = {0});

/// The steps that rand_augment draws from.
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

/// Applies `ops` random steps out of 14, all at one magnitude; steps with a direction use either one.
/// Params:   magnitude – in [0, 31)
/// Numerics: each step equals torchvision's on a PIL image (tests/data/images/augment_test.cpp)
/// Throws:   c10::ValueError if ops is outside [0, 100] or magnitude is out of range
/// Ref:      torchvision.transforms.RandAugment; arXiv:1909.13719
Transform rand_augment(int ops = 2, int magnitude = 9);

/// Applies one step of rand_augment.
/// Params: magnitude – in [0, 31)
ImageView apply_augment(const ImageView& image, AugmentOp op, int magnitude, bool negative, Scratch& scratch);

}  // namespace bellows::data
