#pragma once

#include "bellows/core/seed.h"
#include "bellows/data/loader/batch.h"
#include "bellows/io/images/image.h"

namespace bellows::data {

/// How the images of a batch and their labels are mixed with each other. If both kinds are enabled, each batch uses one
/// of them with probability 1/2.
struct MixOptions {
  double mixup_alpha = 0;   ///< shares are drawn from Beta(alpha, alpha); 0: no mixup
  double cutmix_alpha = 0;  ///< the same for cutmix
  /// "label" becomes float [N, num_classes], with rows that sum to 1. With 0, it stays, and "label_other" [N] and
  /// "label_share" [N], the float share of "label", are added.
  int64_t num_classes = 0;
};

/// Mixes each image with the previous one in the batch, and the first with the last. All randomness depends on `seed`
/// only. A loader derives it from its own seed, the epoch and the position of the batch's first sample in the sequence,
/// so it differs between ranks. Without an alpha, the batch is returned unchanged.
/// Params:   batch – with "image" float or, for cutmix, of any type [N, C, H, W], changed in place; "label" int64 [N]
/// Numerics: bit-identical to torchvision.transforms.v2 MixUp and CutMix for the same share and box
///           (tests/data/images/mix_batch_test.cpp)
/// Cost:     reads and writes the images once
/// Throws:   c10::ValueError if a tensor is missing, if an alpha or num_classes is negative, or if a label is outside
///           [0, num_classes)
/// Ref:      arXiv:1710.09412, arXiv:1905.04899
Batch mix_batch(Batch batch, const MixOptions& options, uint64_t seed);

/// images[i] = share · images[i] + (1 − share) · images[i − 1], in place.
void mixup_(const at::Tensor& images, double share);
/// Copies a part of the previous image into each image, in place.
void cutmix_(const at::Tensor& images, const io::ImageRegion& part);
/// Params:  labels – int64 [N]
/// Returns: float [N, num_classes]
at::Tensor mix_labels(const at::Tensor& labels, double share, int64_t num_classes);

/// Draws from Beta(alpha, alpha).
double draw_beta(double alpha, RandomStream& random);

}  // namespace bellows::data
