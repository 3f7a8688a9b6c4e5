#pragma once

#include <cstdint>

#include "bellows/core/model.h"

namespace bellows::models {

struct VggOptions {
  int64_t num_classes = 1000;
  int64_t in_channels = 3;
  double dropout = 0.5;
  int64_t hidden = 4096;  ///< units of the two hidden layers after the convolutions
};

/// Networks of 3×3 convolutions, with and without batch norms. They match torchvision's networks in the names and order
/// of parameters and buffers, in the initial weights for the same seed, and in the results. To load torchvision's
/// weight files, use `load_weights(model, io::load_tensors(path))`.
/// Shapes:   x [N, in_channels, H, W] with H, W ≥ 32 → logits [N, num_classes]
/// Numerics: logits and gradients match Python PyTorch (tests/models/vision_golden_test.cpp)
/// Cost:     133, 133, 138 and 144 million parameters with 1,000 classes
/// Throws:   c10::ValueError if a size is below 1, or `dropout` is outside [0, 1)
/// Ref:      arXiv:1409.1556; torchvision.models.vgg11, vgg11_bn, vgg13, …
Model vgg11(const VggOptions& options = {});
Model vgg13(const VggOptions& options = {});
Model vgg16(const VggOptions& options = {});
Model vgg19(const VggOptions& options = {});
Model vgg11_bn(const VggOptions& options = {});
Model vgg13_bn(const VggOptions& options = {});
Model vgg16_bn(const VggOptions& options = {});
Model vgg19_bn(const VggOptions& options = {});

}  // namespace bellows::models
