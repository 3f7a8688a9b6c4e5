#pragma once

#include "bellows/core/seed.h"
#include "bellows/data/loader/batch.h"
#include "bellows/io/images/image.h"

namespace bellows::data {

/// How the pictures of a batch are mixed with each other, and their labels with them. Where both are on, a fair coin
/// chooses for each batch.
struct MixOptions {
  double mixup_alpha = 0;   ///< shares come from Beta(alpha, alpha); 0: no mixup
  double cutmix_alpha = 0;  ///< the same for cutmix
  /// "label" becomes float [N, num_classes], each row adding up to 1. 0: it stays, and "label_other" [N] and
  /// "label_share" [N], the float share of "label", are added.
  int64_t num_classes = 0;
};

/// Mixes each picture with the one before it in the batch, the first with the last. What is random depends on `seed`
/// alone; a loader's comes of its own seed, the epoch and where the batch's first sample stands in the sequence, so that
/// ranks differ. Without an alpha, the batch as it is.
/// Params:   batch – with "image" float or, for cutmix, of any type [N, C, H, W], changed in place; "label" int64 [N]
/// Numerics: equal to torchvision.transforms.v2 MixUp and CutMix for the same share and box, bit for bit
///           (tests/data/images/mix_batch_test.cpp)
/// Cost:     reads and writes the pictures once
/// Throws:   c10::ValueError – no such tensors; a negative alpha or num_classes; a label outside [0, num_classes)
/// Ref:      arXiv:1710.09412, arXiv:1905.04899
Batch mix_batch(Batch batch, const MixOptions& options, uint64_t seed);

/// images[i] = share · images[i] + (1 − share) · images[i − 1], in place.
void mixup_(const at::Tensor& images, double share);
/// Takes a part of each picture from the one before it, in place.
void cutmix_(const at::Tensor& images, const io::ImageRegion& part);
/// Params: labels – int64 [N]. Returns: float [N, num_classes]
at::Tensor mix_labels(const at::Tensor& labels, double share, int64_t num_classes);

/// A number from Beta(alpha, alpha).
double draw_beta(double alpha, RandomStream& random);

}  // namespace bellows::data
