#pragma once

#include "bellows/data/images/transform.h"
#include "bellows/io/images/image.h"

namespace bellows::data {

/// The height or the width of a cut (a region of an image), which is scaled to `out` pixels with Pillow's triangle
/// filter. Output pixel i depends on the input pixels [first(i), last(i)).
struct ScaledSide {
  double begin = 0;    ///< start of the cut in input pixels; above 0 only if the cut begins within a pixel
  double extent = 0;   ///< length of the cut in input pixels
  int64_t pixels = 0;  ///< number of input pixels that the cut touches
  int64_t out = 0;

  double scale() const { return extent / static_cast<double>(out); }
  int64_t first(int64_t i) const;
  int64_t last(int64_t i) const;
  /// Returns true if scaling changes nothing.
  bool plain() const { return begin == 0 && extent == static_cast<double>(out); }
};

/// The position of the cut in the available pixels. It is negative if the first pixels of the cut are not available.
struct Origin {
  int64_t y = 0, x = 0;
};

/// Scales a cut of `image` and returns a window of the result.
/// Params:   window – region of the complete result, which has rows.out × columns.out pixels
/// Numerics: the order of the passes (rows first) and all rounding are the same as in Pillow (up to version 12)
/// Throws:   c10::ValueError if the intermediate image between the two passes exceeds the size limits
ImageView resample(const ImageView& image, Origin cut, const ScaledSide& rows, const ScaledSide& columns,
                   const io::ImageRegion& window, Scratch& scratch);

}  // namespace bellows::data
