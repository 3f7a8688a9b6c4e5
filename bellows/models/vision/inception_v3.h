#pragma once

#include <cstdint>

#include "bellows/core/model.h"

namespace bellows::models {

struct InceptionV3Options {
  int64_t num_classes = 1000;
  int64_t in_channels = 3;
  bool aux_logits = true;  ///< an auxiliary output in training mode, see auxiliary.h
  /// The input is normalized with ImageNet's mean and standard deviation, but the weights expect mean 0.5 and standard
  /// deviation 0.5. torchvision sets this option with its weight files.
  bool transform_input = false;
  double dropout = 0.5;
};

/// Inception-v3. It matches torchvision's network in the names and order of parameters and buffers, in the initial
/// weights for the same seed, and in the results. To load torchvision's weight file, use
/// `load_weights(model, io::load_tensors(path))`, with `transform_input` for images that are normalized with ImageNet's
/// mean and standard deviation.
/// Shapes:   x [N, in_channels, H, W] with H, W ≥ 75 → logits [N, num_classes]. In training mode, forward_all() also
///           returns "aux_logits", of the same shape. The auxiliary head needs H, W ≥ 299, and at least two images,
///           because its last batch norm sees one value per image and channel
/// Numerics: all outputs and the gradients match Python PyTorch (tests/models/vision_golden_test.cpp)
/// Cost:     27.2 million parameters with 1,000 classes, of which 3.3 million are in the auxiliary head
/// Throws:   c10::ValueError if a size is below 1, `dropout` is outside [0, 1), or `transform_input` is set without
///           three channels; in forward(), if images are too small or too few
/// Ref:      arXiv:1512.00567; torchvision.models.inception_v3
Model inception_v3(const InceptionV3Options& options = {});

}  // namespace bellows::models
