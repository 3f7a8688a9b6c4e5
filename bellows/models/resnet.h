#pragma once

#include <cstdint>

#include "bellows/core/model.h"

namespace bellows::models {

struct ResNetOptions {
  int64_t num_classes = 1000;
  int64_t in_channels = 3;
};

/// Residual networks for images. They match torchvision's networks in the names and order of parameters and buffers, in
/// the initial weights for the same seed, and in the results. To load torchvision's weight files, use
/// `load_state_dict(model, io::load_tensors(path))`.
/// Shapes:   x [N, in_channels, H, W] with H, W ≥ 32 → logits [N, num_classes]
/// Numerics: logits, gradients and 20 steps of SGD match Python PyTorch (tests/models/resnet_golden_test.cpp,
///           tests/models/vision_golden_test.cpp)
/// Cost:     11.7, 21.8, 25.6, 44.5 and 60.2 million parameters with 1,000 classes
/// Throws:   c10::ValueError if an option is below 1
/// Ref:      arXiv:1512.03385; torchvision.models.resnet18, resnet34, resnet50, resnet101, resnet152
Model resnet18(const ResNetOptions& options = {});
Model resnet34(const ResNetOptions& options = {});
Model resnet50(const ResNetOptions& options = {});
Model resnet101(const ResNetOptions& options = {});
Model resnet152(const ResNetOptions& options = {});

struct DigitsResNetOptions {
  int64_t num_classes = 10;
  int64_t in_channels = 1;
  int64_t width = 16;  ///< channels of the first stage; the second stage has 2 times and the third 4 times as many
  int64_t blocks = 1;  ///< number of residual blocks per stage
};

/// A small residual network for small images, built like the networks for CIFAR in the ResNet paper. It has a 3×3 stem
/// without pooling, three stages, and torchvision's names. On data/digits, it reaches 97 % accuracy on the held-out
/// digits after three to five epochs of SGD with momentum.
/// Shapes:   x [N, in_channels, H, W] with H, W ≥ 4 → logits [N, num_classes]
/// Cost:     78 thousand parameters with the default options
/// Throws:   c10::ValueError if an option is below 1
/// Ref:      arXiv:1512.03385, section 4.2
Model digits_resnet(const DigitsResNetOptions& options = {});

}  // namespace bellows::models
