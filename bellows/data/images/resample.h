#pragma once

#include "bellows/data/images/transform.h"
#include "bellows/io/images/image.h"

namespace bellows::data {

/// One side of a cut that is scaled to `out` positions, by Pillow's triangle filter: position i is made of the input's
/// [first(i), last(i)).
struct ScaledSide {
  double begin = 0;    ///< of the cut, in input pixels; above 0 only where the cut begins within a pixel
  double extent = 0;   ///< of the cut
  int64_t pixels = 0;  ///< whole input pixels that it reaches over
  int64_t out = 0;

  double scale() const { return extent / static_cast<double>(out); }
  int64_t first(int64_t i) const;
  int64_t last(int64_t i) const;
  /// Nothing changes.
  bool plain() const { return begin == 0 && extent == static_cast<double>(out); }
};

/// Where the cut begins in the memory that is there; negative where its first pixels are not there.
struct Origin {
  int64_t y = 0, x = 0;
};

/// Scales a cut of `image` and gives a window of the result.
/// Params:   window – of the rows.out × columns.out pixels that the whole result would have
/// Numerics: the order of passes (rows first) and all roundings are Pillow's (up to 12)
/// Throws:   c10::ValueError – the picture between the two passes is above the limits
ImageView resample(const ImageView& image, Origin cut, const ScaledSide& rows, const ScaledSide& columns,
                   const io::ImageRegion& window, Scratch& scratch);

}  // namespace bellows::data
