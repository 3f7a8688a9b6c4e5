#pragma once

#include <cstdint>

#include "bellows/core/model.h"

namespace bellows::models {

struct InceptionV2Options {
  int64_t num_classes = 1000;
  int64_t in_channels = 3;
  double dropout = 0.2;
};

/// Batch-norm Inception. torchvision does not have this network. Widths, strides and pools are those of figure 5 of the
/// paper. The names of parameters and the initial weights are those of torchvision's GoogLeNet, whose blocks it uses:
/// `inception4a.branch3.2.conv.weight` is the second 3×3 convolution of the double 3×3 branch. The first convolution is
/// an ordinary one instead of a separable one. There are no auxiliary heads.
/// Shapes:   x [N, in_channels, H, W] with H, W ≥ 32 → logits [N, num_classes]
/// Numerics: logits and gradients match the same network in Python (tools/goldens/vision.py)
/// Cost:     11.2 million parameters with 1,000 classes
/// Throws:   c10::ValueError if a size is below 1, or `dropout` is outside [0, 1)
/// Ref:      arXiv:1502.03167, figure 5
Model inception_v2(const InceptionV2Options& options = {});

}  // namespace bellows::models
