#pragma once

#include <string>
#include <vector>

#include "bellows/data/images/transform.h"
#include "bellows/data/sample.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

/// Changes to the image of each sample when a dataset is converted.
struct RecodeOptions {
  enum class Coding { keep, jpg, png, raw, restart };

  int64_t shorter = 0;            ///< images with a longer shorter side are scaled down to this; 0: no scaling
  int64_t height = 0, width = 0;  ///< all images are scaled to this size; 0: no scaling
  Coding coding = Coding::keep;   ///< raw: pixels, uint8 "image" [H, W, C]; keep: the encoding of the source;
                                  ///< restart: the same, but a JPEG with restart markers (io::jpeg_with_restarts)
  int64_t quality = 0;            ///< of JPEG, 1 to 100; 0: 90, and JPEGs that are not scaled are copied

  bool active() const { return shorter > 0 || height > 0 || coding != Coding::keep; }
};

/// Parses `resize` ("256", "224x224" for height x width) and `encode` ("jpg", "jpg:90", "png", "raw", "restart",
/// "keep"). Empty texts change nothing.
/// Throws: c10::ValueError if a text is invalid (the message says what was expected)
RecodeOptions parse_recode(const std::string& resize, const std::string& encode);

/// Decodes, scales and encodes images.
/// Threads: thread-safe with one Work per thread; a changed sample points into its Work
class Recoder {
 public:
  struct Work {
    io::Bytes bytes;             ///< the current image
    std::vector<int64_t> sizes;  ///< of an image as pixels
    std::vector<uint8_t> decoded;
    Scratch scratch;
  };

  /// Throws: c10::ValueError if a size or the quality is out of range
  explicit Recoder(RecodeOptions options);
  /// Numerics: JPEG drops an alpha channel without blending
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
