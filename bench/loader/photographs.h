#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bellows::bench {

/// JPEG-encoded photographs with their labels.
struct Photographs {
  static constexpr int64_t height = 375, width = 500;
  std::vector<std::string> jpegs;
  static int64_t label(size_t i) { return static_cast<int64_t>(i % 10); }
};

/// Returns crops of the two photographs of scikit-learn (china.jpg, flower.jpg) as JPEG of quality 90, with chroma at half resolution.
/// Every second crop is mirrored. The result is always the same.
/// Throws: c10::ValueError if scikit-learn is not installed among the benchmarks' Python packages
Photographs make_photographs(int64_t count);

/// Writes the photographs to `folder` in each format that a side reads: jpg/LABEL/NNNN.jpg, photos-0.tar to photos-3.tar, photos.beton
/// (the JPEG files), raw.beton (pixels), photos.pack and restart.pack (with restart markers).
void write_photographs(const Photographs& photographs, const std::string& folder);

}  // namespace bellows::bench
