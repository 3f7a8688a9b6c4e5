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

/// Options for padding arrays of unequal length to one length (see Dataset::pad()).
struct Padding {
  std::string field;
  c10::Scalar value = 0;    ///< written after the end of each array
  int64_t multiple_of = 1;  ///< the padded length is a multiple of this number, which is in [1, 2^20]
};

/// The steps from a stored sample to a row of a batch:
/// - An image is decoded, transformed and written as float "image" [N, C, H, W]. The stored image is an encoded file
///   "png", "jpg", "jpeg" or "image", or a uint8 array "image" [H, W, C].
/// - A label is written as int64 "label" [N]. The stored label is a .cls file with an integer, or a .json file with an
///   integer or an object.
/// - Other arrays are stacked under their own names. The arrays in `padding` are padded to the longest one.
/// - Other files are left out.
///
/// One sample determines which of these tensors a batch has. If `required` is not empty, this is the first good sample
/// that has all required tensors. Otherwise, this is the first good sample that has arrays, or an image and a label,
/// among the first 100 samples. If there is no such sample among them, the first good sample of the source is used. A
/// sample that lacks one of these tensors is a bad sample.
struct PipelineOptions {
  std::string decode = "rgb";         ///< "rgb" or "gray"; the channels of uint8 arrays do not change
  std::vector<Transform> transforms;  ///< transforms in the order in which they run
  std::vector<double> mean, std;      ///< one value, or one value per channel; if empty, values are in [0, 1]
  PixelPass pixels;                   ///< if set, replaces mean and std as the last pass
  MixOptions mix;                     ///< mixes the images of a batch with each other
  /// Element type of "image": Float, BFloat16 or Byte (not normalized).
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool channels_last = false;         ///< if true, "image" has the memory format channels_last; its sizes do not change
  std::string label_key = "label";    ///< the key of the label in a .json object
  std::vector<Padding> padding;       ///< options for arrays [length, …] of unequal length
  int64_t num_classes = 0;            ///< if above 0, samples with labels outside [0, num_classes) are bad samples
  std::vector<std::string> required;  ///< names of tensors that every batch must have
  /// If true, JPEGs that the leading transforms shrink are decoded at 1/2, 1/4 or 1/8 of their size and with a less
  /// precise inverse DCT. The pixels differ slightly from exact decoding (tests/data/images/fast_decode_test.cpp).
  bool fast_decode = false;
  /// Size limit of the cache for decoded images, in bytes; 0: no cache. Images are cached after the leading
  /// deterministic transforms.
  int64_t cache_bytes = 0;
};

}  // namespace bellows::data
