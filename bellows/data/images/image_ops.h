#pragma once

#include "bellows/data/images/transform.h"

namespace bellows::data {

// Deterministic image operations, which are the building blocks of color_jitter() and rand_augment(). On 8-bit images
// with one or three channels, each function is bit-identical to the function of Pillow or torchvision with the same
// name (tests/data/images/augment_test.cpp). The result is a view of `scratch` or of `image`.

/// Params: factor – 0: black, 1: unchanged
ImageView adjust_brightness(const ImageView& image, double factor, Scratch& scratch);
/// Params: factor – 0: uniform gray with the mean brightness of the image, 1: unchanged
ImageView adjust_contrast(const ImageView& image, double factor, Scratch& scratch);
/// Params: factor – 0: gray, 1: unchanged
ImageView adjust_saturation(const ImageView& image, double factor, Scratch& scratch);
/// Params: turn – rotation of the color wheel in turns, in [-0.5, 0.5]
ImageView adjust_hue(const ImageView& image, double turn, Scratch& scratch);
/// Params: factor – 0: smoothed, 1: unchanged
ImageView adjust_sharpness(const ImageView& image, double factor, Scratch& scratch);
/// Sets all channels to the luma.
ImageView to_grayscale(const ImageView& image, Scratch& scratch);
/// Keeps the highest `bits` bits of each value and clears the others.
/// Params: bits – in [0, 8]
ImageView posterize(const ImageView& image, int bits, Scratch& scratch);
/// Inverts the values that are at least `threshold`.
ImageView solarize(const ImageView& image, double threshold, Scratch& scratch);
/// Scales the values of each channel linearly to the range 0 … 255.
ImageView autocontrast(const ImageView& image, Scratch& scratch);
/// Equalizes the histogram of each channel.
ImageView equalize(const ImageView& image, Scratch& scratch);

/// Shifts each row relative to the row above it. In this function and the next three, pixels from outside the image are
/// black.
/// Params: slope – number of columns by which a row is shifted relative to the row above it
ImageView shear_x(const ImageView& image, double slope, Scratch& scratch);
/// Params: slope – number of rows by which a column is shifted relative to the column to its left
ImageView shear_y(const ImageView& image, double slope, Scratch& scratch);
/// Moves the image to the right and down.
ImageView translate(const ImageView& image, int64_t right, int64_t down, Scratch& scratch);
/// Rotates the image around its center, with nearest-pixel sampling.
/// Params: degrees – counterclockwise
ImageView rotate(const ImageView& image, double degrees, Scratch& scratch);

}  // namespace bellows::data
