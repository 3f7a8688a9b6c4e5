#pragma once

#include "bellows/core/seed.h"
#include "bellows/data/loader/batch.h"
#include "bellows/io/images/image.h"

namespace bellows::data {

/// Selects how the images and labels of a batch are mixed with each other. If both mixup and cutmix are enabled, each
/// batch uses one of them, with probability 1/2 each.
struct MixOptions {
  double mixup_alpha = 0;   ///< mixup draws one share per batch from Beta(alpha, alpha) (see mixup_()); 0: no mixup
  double cutmix_alpha = 0;  ///< cutmix draws one share per batch from Beta(alpha, alpha); 0: no cutmix
  /// If above 0, "label" becomes float [N, num_classes] with rows that sum to 1. If 0, "label" does not change, and two
  /// tensors [N] are added: "label_other" is the other label, and "label_share" is the share of "label" (float).
  int64_t num_classes = 0;
};

/// Mixes each image with the previous image in the batch, and the first image with the last image. If both alphas are
/// 0, the batch does not change. The result is a deterministic function of the batch and `seed`. A loader computes
/// `seed` from its own seed, the epoch and the position of the batch's first sample in the sequence. Therefore, each
/// rank uses a different seed.
/// Params:   batch – has "image" [N, C, H, W] (float; for cutmix, any type), which is changed in place, and "label"
///           int64 [N]
/// Numerics: bit-identical to MixUp and CutMix of torchvision.transforms.v2 for the same share and box
///           (tests/data/images/mix_batch_test.cpp)
/// Cost:     reads and writes the images once
/// Throws:   c10::ValueError if a tensor is missing or has the wrong shape or type, if an alpha or num_classes is
///           negative, or if a label is outside [0, num_classes)
/// Ref:      arXiv:1710.09412, arXiv:1905.04899
Batch mix_batch(Batch batch, const MixOptions& options, uint64_t seed);

/// Computes images[i] = share · images[i] + (1 − share) · images[i − 1] in place. For the first image, the previous
/// image is the last one.
void mixup_(const at::Tensor& images, double share);
/// Replaces `part` of each image with the same part of the previous image, in place.
void cutmix_(const at::Tensor& images, const io::ImageRegion& part);
/// Returns the mixed labels of a batch as class probabilities.
/// Params:  labels – int64 [N]
/// Returns: float [N, num_classes]
at::Tensor mix_labels(const at::Tensor& labels, double share, int64_t num_classes);

/// Draws a number from Beta(alpha, alpha).
double draw_beta(double alpha, RandomStream& random);

}  // namespace bellows::data
