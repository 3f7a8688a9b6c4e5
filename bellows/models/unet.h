#pragma once

#include <cstdint>

#include "bellows/core/model.h"

namespace bellows::models {

struct UNetOptions {
  int64_t num_classes = 2;
  int64_t in_channels = 3;
  int64_t channels = 64;  ///< channels of the first stage; each further stage has twice as many as the previous one
  int64_t depth = 4;      ///< number of times that height and width are halved
  /// Upsample by interpolation, with half the channels, instead of by transposed convolutions.
  bool bilinear = false;
};

/// U-Net for segmentation, with batch norm and padded convolutions. Parameter names are those of
/// github.com/milesial/Pytorch-UNet (`inc`, `down1` …, `up1` …, `outc`), so weight files of that project can be loaded.
/// Shapes:   x [N, in_channels, H, W] with H, W of at least 2^depth → logits per pixel [N, num_classes, H, W]
/// Numerics: logits, gradients and running statistics match Python PyTorch (tests/models/networks_golden_test.cpp)
/// Cost:     31 million parameters with the default options, 17 million with `bilinear`
/// Throws:   c10::ValueError if an option is below 1. Forward throws it if images are too small
/// Ref:      arXiv:1505.04597
Model unet(const UNetOptions& options = {});

}  // namespace bellows::models
