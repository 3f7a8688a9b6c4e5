#pragma once

#include "bellows/data/images/transform.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace bellows::data {

/// How much color_jitter changes: factors are drawn from [1 - x, 1 + x], not below 0, the hue's turn from [-x, x].
struct ColorJitter {
  double brightness = 0, contrast = 0, saturation = 0;
  double hue = 0;  ///< at most 0.5
};

/// Changes brightness, contrast, saturation and hue by random amounts, in random order; those that are 0 are left out.
/// Numerics: each as adjust_… in image_ops.h
/// Throws:   c10::ValueError – a negative amount, one above 1e6, a hue above 0.5
/// Ref:      torchvision.transforms.ColorJitter
Transform color_jitter(const ColorJitter& amounts);

/// Gray in all channels, with probability `p`.
/// Ref: torchvision.transforms.RandomGrayscale
Transform random_grayscale(double p = 0.1);

/// Fills a random part of the picture, with probability `p`: its area is `scale` of the picture's, its height over
/// width within `ratio`. Ten parts are tried; where none is smaller than the picture, nothing is filled.
/// Params: fill – one value, or one for each channel: 255 times the mean gives 0 after normalize
/// Throws: c10::ValueError – p outside [0, 1]; not 0 < least ≤ most for scale and ratio; scale above 1; when run: fill
///         has another number of channels
/// Ref:    torchvision.transforms.RandomErasing, which erases after normalizing
Transform random_erasing(double p = 0.5, std::pair<double, double> scale = {0.02, 0.33},
                         std::pair<double, double> ratio = {0.3, 3.3}, std::vector<uint8_t> fill = {0});

/// Fills a square of `side` pixels whose middle lies anywhere in the picture; what reaches over its edges is cut off.
/// Throws: c10::ValueError – side outside [1, kMaxImageSide]; when run: fill has another number of channels
/// Ref:    arXiv:1708.04552
Transform cutout(int64_t side, std::vector<uint8_t> fill = {0});

/// Steps that rand_augment draws from.
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

/// `ops` random steps of 14, at one strength; those with a direction go either way.
/// Params:   magnitude – in [0, 31)
/// Numerics: each step equals torchvision's on a PIL image (tests/data/images/augment_test.cpp)
/// Throws:   c10::ValueError – ops outside [0, 100], magnitude out of range
/// Ref:      torchvision.transforms.RandAugment; arXiv:1909.13719
Transform rand_augment(int ops = 2, int magnitude = 9);

/// One step of rand_augment.
/// Params: magnitude – in [0, 31)
ImageView apply_augment(const ImageView& image, AugmentOp op, int magnitude, bool negative, Scratch& scratch);

}  // namespace bellows::data
