#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bellows::bench {

/// Encoded photographs with their labels.
struct Photographs {
  static constexpr int64_t height = 375, width = 500;
  std::vector<std::string> jpegs;
  static int64_t label(size_t i) { return static_cast<int64_t>(i % 10); }
};

/// Crops of the two photographs that scikit-learn ships (china.jpg, flower.jpg), every other one mirrored, as JPEG of
/// quality 90 with colour at half resolution. Always the same.
/// Throws: c10::ValueError – scikit-learn is not among the benchmarks' Python packages
Photographs make_photographs(int64_t count);

/// Writes them into `folder` in every form that a side reads: jpg/LABEL/NNNN.jpg, photos-0.tar to photos-3.tar,
/// photos.beton (the JPEG files), raw.beton (pixels), photos.pack, restart.pack (with restart markers).
void write_photographs(const Photographs& photographs, const std::string& folder);

}  // namespace bellows::bench
