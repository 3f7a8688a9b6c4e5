#pragma once

#include "bellows/data/images/mix_batch.h"
#include "bellows/data/images/pixel_chain.h"
#include "bellows/data/images/transform.h"
#include "bellows/data/sample.h"

#include <c10/core/Scalar.h>

#include <optional>
#include <string>
#include <vector>

namespace bellows::data {

/// Makes arrays of unequal length fit into one tensor: see Dataset::pad.
struct Padding {
  std::string field;
  c10::Scalar value = 0;    ///< behind the end
  int64_t multiple_of = 1;  ///< of the longest, in [1, 2^20]
};

/// What happens to each sample on its way into a batch.
///
/// A picture (a field png, jpg, jpeg or image file, or a uint8 array "image" [H, W, C]) is decoded, transformed and
/// written as float "image" [N, C, H, W]. A label (.cls with an integer, .json with an integer or an object) is written
/// as int64 "label" [N]. Other arrays are stacked under their own names, those of `padding` padded to the longest. Other
/// files are left out.
///
/// Which of these a batch has is learnt from one sample: the first good one that has all of `required`; without
/// `required`, the first good one with both a picture and a label, if one of the leading 100 is, else the first good
/// one. Samples that lack what a batch has are bad samples.
struct PipelineOptions {
  std::string decode = "rgb";                      ///< "rgb" or "gray"; uint8 arrays are taken as they are
  std::vector<Transform> transforms;               ///< in order
  std::vector<double> mean, std;                   ///< one value or one for each channel; empty: values in [0, 1]
  PixelPass pixels;                                ///< the last pass, in the place of mean and std; empty: these
  MixOptions mix;                                  ///< between the pictures of a batch
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of "image": Float, BFloat16, or Byte, which is not normalised
  bool channels_last = false;                      ///< memory order of "image"; its sizes are the same
  std::string label_key = "label";                 ///< the member of a .json object that holds the label
  std::vector<Padding> padding;                    ///< arrays [length, …] of unequal length
  int64_t num_classes = 0;                         ///< labels outside [0, num_classes) are bad samples; 0: not checked
  std::vector<std::string> required;               ///< tensors that batches have; empty: see above
  /// JPEGs are decoded at 1/2, 1/4 or 1/8 of their size where the leading transforms shrink them by as much, and with a
  /// rougher transform. Pixels differ slightly from those of exact decoding (tests/data/images/fast_decode_test.cpp).
  bool fast_decode = false;
  int64_t cache_bytes = 0;  ///< keep this much of decoded pictures, after the leading deterministic transforms; 0: none
};

}  // namespace bellows::data
