#pragma once

#include <string>
#include <vector>

#include "bellows/data/images/transform.h"
#include "bellows/data/sample.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

/// Changes to the image of each sample during a conversion.
struct RecodeOptions {
  enum class Coding { keep, jpg, png, raw, restart };

  int64_t shorter = 0;  ///< maximum length of the shorter side in pixels; larger images are scaled down; 0: no limit
  int64_t height = 0, width = 0;  ///< size in pixels to which all images are scaled; 0: not scaled
  /// Encoding of the written images. `keep` does not change the encoding, and `raw` stores the pixels as a uint8 array
  /// "image" [H, W, C]. `restart` is like `keep`, but adds restart markers to JPEGs (io::jpeg_with_restarts).
  Coding coding = Coding::keep;
  /// JPEG quality from 1 to 100; 0: JPEGs that are not scaled are copied, and all other images get quality 90.
  int64_t quality = 0;

  bool active() const { return shorter > 0 || height > 0 || coding != Coding::keep; }
};

/// Parses two texts into options. An empty text changes nothing.
/// Params: resize – the shorter side ("256"), or height x width ("224x224")
///         encode – "jpg", "jpg:90", "png", "raw", "restart" or "keep"
/// Throws: c10::ValueError if a text is invalid (the message states the expected form)
RecodeOptions parse_recode(const std::string& resize, const std::string& encode);

/// Decodes, scales and encodes images.
/// Threads: thread-safe if each thread uses its own Work; a changed sample refers to memory of this Work
class Recoder {
 public:
  struct Work {
    io::Bytes bytes;             ///< the changed image, either encoded or as pixels
    std::vector<int64_t> sizes;  ///< shape of the image if `bytes` holds pixels
    std::vector<uint8_t> decoded;
    Scratch scratch;
  };

  /// Throws: c10::ValueError if a size or the quality is out of range
  explicit Recoder(RecodeOptions options);
  /// Replaces the image of the sample with the changed image.
  /// Numerics: if an image with an alpha channel becomes a JPEG, the alpha channel is dropped without blending
  /// Throws:   c10::ValueError if the sample has no image or the image cannot be decoded (the message names the sample
  ///           and its location)
  void run(Sample& sample, Work& work) const;

 private:
  bool wants_scaling(const ImageView& image) const;
  void encode(const ImageView& image, RecodeOptions::Coding coding, Field& field, Work& work) const;

  RecodeOptions options_;
  Transform scale_;
};

}  // namespace bellows::data
