#pragma once

#include "bellows/data/images/transform.h"

namespace bellows::data {

// Steps on pictures without anything random: what color_jitter and rand_augment are made of. Each equals Pillow's and
// torchvision's function of that name on 8-bit pictures of one or three channels, bit for bit
// (tests/data/images/augment_test.cpp), and returns a view of `scratch` or of `image`.

/// Params: factor – 0: black, 1: as it is
ImageView adjust_brightness(const ImageView& image, double factor, Scratch& scratch);
/// Params: factor – 0: all as gray as the picture's mean, 1: as it is
ImageView adjust_contrast(const ImageView& image, double factor, Scratch& scratch);
/// Params: factor – 0: gray, 1: as it is
ImageView adjust_saturation(const ImageView& image, double factor, Scratch& scratch);
/// Params: turn – of the colour wheel, in [-0.5, 0.5]
ImageView adjust_hue(const ImageView& image, double turn, Scratch& scratch);
/// Params: factor – 0: smooth, 1: as it is
ImageView adjust_sharpness(const ImageView& image, double factor, Scratch& scratch);
/// Luma in all channels.
ImageView to_grayscale(const ImageView& image, Scratch& scratch);
/// Keeps the highest `bits` of each value, in [0, 8].
ImageView posterize(const ImageView& image, int bits, Scratch& scratch);
/// Inverts values that are not below `threshold`.
ImageView solarize(const ImageView& image, double threshold, Scratch& scratch);
/// Stretches each channel to 0 … 255.
ImageView autocontrast(const ImageView& image, Scratch& scratch);
/// Makes each channel's values equally frequent.
ImageView equalize(const ImageView& image, Scratch& scratch);

/// Params: slope – columns that a row is moved against the one above it
ImageView shear_x(const ImageView& image, double slope, Scratch& scratch);
/// Params: slope – rows that a column is moved against the one left of it
ImageView shear_y(const ImageView& image, double slope, Scratch& scratch);
/// Moves the picture to the right and down. What comes in is black, here, in the shears and in rotate.
ImageView translate(const ImageView& image, int64_t right, int64_t down, Scratch& scratch);
/// Params: degrees – against the clock, around the middle; the nearest pixel is taken
ImageView rotate(const ImageView& image, double degrees, Scratch& scratch);

}  // namespace bellows::data
