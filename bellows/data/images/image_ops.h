#pragma once

#include "bellows/data/images/transform.h"

namespace bellows::data {

// Deterministic image operations, the building blocks of color_jitter and rand_augment. Each is bit-identical to
// Pillow's and torchvision's function of that name on 8-bit images with one or three channels
// (tests/data/images/augment_test.cpp). Each returns a view of `scratch` or of `image`.

/// Params: factor – 0: black, 1: unchanged
ImageView adjust_brightness(const ImageView& image, double factor, Scratch& scratch);
/// Params: factor – 0: uniform gray with the image's mean, 1: unchanged
ImageView adjust_contrast(const ImageView& image, double factor, Scratch& scratch);
/// Params: factor – 0: gray, 1: unchanged
ImageView adjust_saturation(const ImageView& image, double factor, Scratch& scratch);
/// Params: turn – rotation of the color wheel, in [-0.5, 0.5]
ImageView adjust_hue(const ImageView& image, double turn, Scratch& scratch);
/// Params: factor – 0: smooth, 1: unchanged
ImageView adjust_sharpness(const ImageView& image, double factor, Scratch& scratch);
/// Writes the luma into all channels.
ImageView to_grayscale(const ImageView& image, Scratch& scratch);
/// Keeps the highest `bits` bits of each value, in [0, 8].
ImageView posterize(const ImageView& image, int bits, Scratch& scratch);
/// Inverts values that are at least `threshold`.
ImageView solarize(const ImageView& image, double threshold, Scratch& scratch);
/// Stretches the values of each channel to 0 … 255.
ImageView autocontrast(const ImageView& image, Scratch& scratch);
/// Equalizes the histogram of each channel.
ImageView equalize(const ImageView& image, Scratch& scratch);

/// Params: slope – columns by which a row is shifted relative to the row above it
ImageView shear_x(const ImageView& image, double slope, Scratch& scratch);
/// Params: slope – rows by which a column is shifted relative to the column to its left
ImageView shear_y(const ImageView& image, double slope, Scratch& scratch);
/// Moves the image to the right and down. New pixels are black, here, in the shears and in rotate.
ImageView translate(const ImageView& image, int64_t right, int64_t down, Scratch& scratch);
/// Params: degrees – counterclockwise, around the center; samples the nearest pixel
ImageView rotate(const ImageView& image, double degrees, Scratch& scratch);

}  // namespace bellows::data
