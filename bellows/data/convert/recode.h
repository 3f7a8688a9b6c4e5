#pragma once

#include <string>
#include <vector>

#include "bellows/data/images/transform.h"
#include "bellows/data/sample.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

/// What is done to the picture of each sample when a data set is converted.
struct RecodeOptions {
  enum class Coding { keep, jpg, png, raw, restart };

  int64_t shorter = 0;            ///< a picture whose shorter side is longer is scaled down to this; 0: none is
  int64_t height = 0, width = 0;  ///< all pictures are scaled to this; 0: none is
  Coding coding = Coding::keep;   ///< raw: pixels, uint8 "image" [H, W, C]; keep: as the picture was;
                                  ///< restart: too, but a JPEG with restart markers (io::jpeg_with_restarts)
  int64_t quality = 0;            ///< of JPEG, 1 to 100; 0: 90, and JPEGs that are not scaled stay as they are

  bool active() const { return shorter > 0 || height > 0 || coding != Coding::keep; }
};

/// Reads `resize` ("256", "224x224" for height x width) and `encode` ("jpg", "jpg:90", "png", "raw", "restart",
/// "keep"); empty texts change nothing.
/// Throws: c10::ValueError – something else; says what was expected
RecodeOptions parse_recode(const std::string& resize, const std::string& encode);

/// Changes pictures: decodes, scales, encodes.
/// Threads: safe, one Work a thread; the sample that it changed points into its Work.
class Recoder {
 public:
  struct Work {
    io::Bytes bytes;             ///< the picture as it is now
    std::vector<int64_t> sizes;  ///< of a raw one
    std::vector<uint8_t> decoded;
    Scratch scratch;
  };

  /// Throws: c10::ValueError – sizes or a quality out of range
  explicit Recoder(RecodeOptions options);
  /// Numerics: JPEG drops an alpha channel without blending
  /// Throws: c10::ValueError – no picture, one that does not decode: sample and place
  void run(Sample& sample, Work& work) const;

 private:
  bool wants_scaling(const ImageView& image) const;
  void encode(const ImageView& image, RecodeOptions::Coding coding, Field& field, Work& work) const;

  RecodeOptions options_;
  Transform scale_;
};

}  // namespace bellows::data
