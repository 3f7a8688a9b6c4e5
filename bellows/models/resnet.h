#pragma once

#include <cstdint>

#include "bellows/core/model.h"

namespace bellows::models {

struct ResNetOptions {
  int64_t num_classes = 1000;
  int64_t in_channels = 3;
};

/// Deep residual networks for images, equal to torchvision's: names and order of parameters and buffers, initial
/// weights from the same seed, results. torchvision's weight files load with `load_state_dict(model,
/// io::load_tensors(path))`.
/// Shapes:   x [N, in_channels, H, W] with H, W ≥ 32 → logits [N, num_classes]
/// Numerics: logits, gradients and 20 steps of SGD as Python PyTorch's (tests/models/resnet_golden_test.cpp)
/// Cost:     11.7, 21.8 and 25.6 million parameters with 1000 classes
/// Throws:   c10::ValueError – an option below 1
/// Ref:      arXiv:1512.03385; torchvision.models.resnet18, resnet34, resnet50
Model resnet18(const ResNetOptions& options = {});
Model resnet34(const ResNetOptions& options = {});
Model resnet50(const ResNetOptions& options = {});

struct DigitsResNetOptions {
  int64_t num_classes = 10;
  int64_t in_channels = 1;
  int64_t width = 16;  ///< channels of the first stage; the two others have twice and four times as many
  int64_t blocks = 1;  ///< residual blocks a stage
};

/// A small residual network for small images, in the form that the ResNet paper uses for CIFAR: 3×3 stem without
/// pooling, three stages, torchvision's names. 97 % of data/digits' held-out digits after three to five epochs of SGD
/// with momentum.
/// Shapes:   x [N, in_channels, H, W] with H, W ≥ 4 → logits [N, num_classes]
/// Cost:     78 thousand parameters with the default options
/// Throws:   c10::ValueError – an option below 1
/// Ref:      arXiv:1512.03385, section 4.2
Model digits_resnet(const DigitsResNetOptions& options = {});

}  // namespace bellows::models
