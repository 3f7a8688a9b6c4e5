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

/// Pads arrays of unequal length so that they fit into one tensor; see Dataset::pad.
struct Padding {
  std::string field;
  c10::Scalar value = 0;    ///< behind the end
  int64_t multiple_of = 1;  ///< the padded length is a multiple of it; in [1, 2^20]
};

/// The steps from a stored sample to a row of a batch.
///
/// An image (a field png, jpg, jpeg or image file, or a uint8 array "image" [H, W, C]) is decoded, transformed and
/// written as float "image" [N, C, H, W]. A label (.cls with an integer, .json with an integer or an object) is written
/// as int64 "label" [N]. Other arrays are stacked under their own names; those in `padding` are padded to the longest.
/// Other files are left out.
///
/// One sample determines which of these tensors a batch has: the first good sample that has all of `required`. Without
/// `required`, it is the first good sample among the first 100 that has both an image and a label, else the first good
/// sample. Samples that lack one of these tensors are bad samples.
struct PipelineOptions {
  std::string decode = "rgb";                      ///< "rgb" or "gray"; uint8 arrays are used as they are
  std::vector<Transform> transforms;               ///< in order
  std::vector<double> mean, std;                   ///< one value, or one per channel; empty: values in [0, 1]
  PixelPass pixels;                                ///< replaces mean and std as the last pass; empty: mean/std apply
  MixOptions mix;                                  ///< between the images of a batch
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of "image": Float, BFloat16, or Byte (not normalized)
  bool channels_last = false;                      ///< memory format of "image"; its sizes stay the same
  std::string label_key = "label";                 ///< the key in a .json object that holds the label
  std::vector<Padding> padding;                    ///< arrays [length, …] of unequal length
  int64_t num_classes = 0;                         ///< labels outside [0, num_classes) are bad samples; 0: not checked
  std::vector<std::string> required;               ///< tensors that every batch has; empty: see above
  /// If the leading transforms shrink JPEGs, decodes them at 1/2, 1/4 or 1/8 of their size and with a less precise
  /// inverse DCT. Pixels differ slightly from those of exact decoding (tests/data/images/fast_decode_test.cpp).
  bool fast_decode = false;
  int64_t cache_bytes = 0;  ///< memory for decoded images, after the leading deterministic transforms; 0: no cache
};

}  // namespace bellows::data
