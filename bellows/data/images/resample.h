#pragma once

#include "bellows/data/images/transform.h"
#include "bellows/io/images/image.h"

namespace bellows::data {

/// One side of a cut that is scaled to `out` positions with Pillow's triangle filter. Position i depends on the input's
/// pixels [first(i), last(i)).
struct ScaledSide {
  double begin = 0;    ///< of the cut, in input pixels; above 0 only if the cut begins within a pixel
  double extent = 0;   ///< length of the cut
  int64_t pixels = 0;  ///< number of input pixels that it touches
  int64_t out = 0;

  double scale() const { return extent / static_cast<double>(out); }
  int64_t first(int64_t i) const;
  int64_t last(int64_t i) const;
  /// True if scaling changes nothing.
  bool plain() const { return begin == 0 && extent == static_cast<double>(out); }
};

/// Where the cut begins in the available memory; negative if its first pixels are missing.
struct Origin {
  int64_t y = 0, x = 0;
};

/// Scales a cut of `image` and returns a window of the result.
/// Params:   window – of the rows.out × columns.out pixels of the whole result
/// Numerics: the order of passes (rows first) and all rounding are Pillow's (up to version 12)
/// Throws:   c10::ValueError if the image between the two passes exceeds the size limits
ImageView resample(const ImageView& image, Origin cut, const ScaledSide& rows, const ScaledSide& columns,
                   const io::ImageRegion& window, Scratch& scratch);

}  // namespace bellows::data
