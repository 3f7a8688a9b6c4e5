#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/data/dataset.h"

namespace bellows::data {

struct SyntheticImageOptions {
  int64_t samples = 10000;
  int64_t size = 64;  ///< height and width of the images, 16 to 512
  uint64_t seed = 1;
  std::string split = "train";  ///< splits of different names have different images
};

/// Returns the names of the classes: ten shapes ("disk", "ring", …), then ten textures ("stripes", "checks", …).
const std::vector<std::string>& synthetic_classes();

/// Draws a shape on a cloudy background, or a texture. Position, rotation, size, colors and noise are random.
/// Params:   label – a class, from 0 to 19
///           size – height and width
/// Returns:  uint8 [size, size, 3]
/// Numerics: the same pixels on every machine
/// Throws:   c10::ValueError if `label` or `size` is out of range
at::Tensor synthetic_image(int64_t label, int64_t size, uint64_t seed);

/// Returns a synthetic dataset of shapes and textures, for measurements without downloaded data. Images are drawn when
/// they are read, as PNG files with labels. Sample i has class i mod 20. It depends only on the seed, the split, the
/// size and i, so a larger dataset begins with the samples of a smaller one. info() has the class names, and the mean and
/// standard deviation of 500 training images.
/// Cost:   about 1 ms per image of 64×64 pixels, and half a second for the statistics
/// Throws: c10::ValueError if `samples` is below 1 or `size` is out of range
Dataset synthetic_images(const SyntheticImageOptions& options = {});

}  // namespace bellows::data
