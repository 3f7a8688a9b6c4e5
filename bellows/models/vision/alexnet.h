#pragma once

#include <cstdint>

#include "bellows/core/model.h"

namespace bellows::models {

struct AlexNetOptions {
  int64_t num_classes = 1000;
  int64_t in_channels = 3;
  double dropout = 0.5;
  int64_t hidden = 4096;  ///< units of the two hidden layers after the convolutions
};

/// AlexNet for one device. It matches torchvision's network in the names and order of parameters, in the initial
/// weights for the same seed, and in the results. To load torchvision's weight file, use
/// `load_weights(model, io::load_tensors(path))`.
/// Shapes:   x [N, in_channels, H, W] with H, W ≥ 63 → logits [N, num_classes]
/// Numerics: logits and gradients match Python PyTorch (tests/models/vision_golden_test.cpp)
/// Cost:     61 million parameters with 1,000 classes
/// Throws:   c10::ValueError if a size is below 1, or `dropout` is outside [0, 1)
/// Ref:      arXiv:1404.5997; torchvision.models.alexnet
Model alexnet(const AlexNetOptions& options = {});

}  // namespace bellows::models
