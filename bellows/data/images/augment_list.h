#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bellows/data/dataset.h"
#include "bellows/data/images/mix_batch.h"

namespace bellows::data {

/// Properties of the dataset that a list of augmentations uses.
struct AugmentContext {
  int64_t height = 0, width = 0;  ///< size of RandomResizedCrop if the list names none; 0: unknown
  std::vector<double> mean = {};  ///< RandomErasing fills with the mean, so that the values are 0 after normalization
  int64_t num_classes = 0;        ///< for MixUp and CutMix (see MixOptions)
};

/// A list of augmentations with the names, parameters and defaults of torchvision.transforms.v2, such as
/// `RandomResizedCrop(224, scale=(0.2, 1)), RandomHorizontalFlip, RandAugment(num_ops=2), MixUp(alpha=0.2)`.
///
/// Steps on images: Resize, CenterCrop, RandomCrop, RandomResizedCrop, RandomHorizontalFlip, RandomVerticalFlip,
/// ColorJitter, RandomGrayscale, RandAugment, RandomErasing. They run on 8-bit pixels in the order of the list, and work
/// like torchvision's steps on a PIL image. Steps on batches, at the end of the list: MixUp and CutMix. If both are
/// listed, each batch uses one of them, with probability 1/2 each, like v2.RandomChoice([CutMix(), MixUp()]).
///
/// Random numbers depend only on the seed, the epoch and the sample or batch. They do not depend on the number of
/// threads, and a resumed run uses the same numbers.
/// Numerics: with fixed parameters, bit-identical to torchvision (tests/data/images/augment_list_test.cpp)
class AugmentList {
 public:
  /// Throws: c10::ValueError if the text is no list of steps, or if a step or a parameter is unknown (the message
  ///         suggests the nearest name). Also c10::ValueError if a parameter is missing, or if a value is out of range
  explicit AugmentList(const std::string& text);

  /// True if a step sets the size of the images. The list then starts from the original images.
  bool sets_size() const;
  /// True if the list contains MixUp or CutMix, so that each label becomes a probability per class.
  bool mixes() const;
  /// Returns the dataset with these steps.
  /// Throws: c10::ValueError if RandomResizedCrop needs the size of the context, but it is unknown
  Dataset apply(const Dataset& dataset, const AugmentContext& context) const;

 private:
  struct Step {
    std::function<Transform(const AugmentContext& context)> make;
    bool sets_size = false;
  };
  std::vector<Step> steps_;
  MixOptions mix_;
};

}  // namespace bellows::data
