#pragma once

#include <cstdint>

#include "bellows/core/model.h"

namespace bellows::models {

struct UNetOptions {
  int64_t num_classes = 2;
  int64_t in_channels = 3;
  int64_t channels = 64;  ///< of the first stage; each one below has twice as many
  int64_t depth = 4;      ///< how many times the image is halved
  bool bilinear = false;  ///< scales up by interpolation, with half the channels, in place of transposed convolutions
};

/// The U-Net for segmentation, with batch norm and padded convolutions; parameters are called as in
/// github.com/milesial/Pytorch-UNet, whose files load as they are: `inc`, `down1` …, `up1` …, `outc`.
/// Shapes:   x [N, in_channels, H, W] with H, W of at least 2^depth → scores of the classes of each pixel
///           [N, num_classes, H, W]
/// Numerics: logits, gradients and running statistics equal Python PyTorch's (tests/models/networks_golden_test.cpp)
/// Cost:     31 million parameters with the default options, 17 million with bilinear
/// Throws:   c10::ValueError – an option below 1; in forward: images that are too small
/// Ref:      arXiv:1505.04597
Model unet(const UNetOptions& options = {});

}  // namespace bellows::models
