#pragma once

#include <cstdint>

#include "bellows/core/model.h"

namespace bellows::models {

struct GoogLeNetOptions {
  int64_t num_classes = 1000;
  int64_t in_channels = 3;
  bool aux_logits = true;  ///< two auxiliary outputs in training mode, see auxiliary.h
  /// The input is normalized with ImageNet's mean and standard deviation, but the weights expect mean 0.5 and standard
  /// deviation 0.5. torchvision sets this option with its weight files.
  bool transform_input = false;
  double dropout = 0.2;
  double dropout_aux = 0.7;
};

/// GoogLeNet with batch norms. It matches torchvision's network in the names and order of parameters and buffers, in
/// the initial weights for the same seed, and in the results. As in torchvision, the kernels of the third branch are
/// 3×3 instead of 5×5. To load torchvision's weight file, use `load_weights(model, io::load_tensors(path))`, with
/// `transform_input` for images that are normalized with ImageNet's mean and standard deviation.
/// Shapes:   x [N, in_channels, H, W] with H, W ≥ 15 → logits [N, num_classes]. In training mode, forward_all() also
///           returns "aux_logits2" and "aux_logits1", of the same shape
/// Numerics: all outputs and the gradients match Python PyTorch (tests/models/vision_golden_test.cpp)
/// Cost:     13.0 million parameters with 1,000 classes, of which 6.4 million are in the auxiliary heads
/// Throws:   c10::ValueError if a size is below 1, a dropout rate is outside [0, 1), or `transform_input` is set
///           without three channels
/// Ref:      arXiv:1409.4842; torchvision.models.googlenet
Model googlenet(const GoogLeNetOptions& options = {});

}  // namespace bellows::models
