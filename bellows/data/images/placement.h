#pragma once

#include "bellows/data/images/transform.h"
#include "bellows/io/images/image.h"

namespace bellows::data {

/// Returns a part of an image, without copying.
/// Params: part – within the image
ImageView part_of(const ImageView& image, const io::ImageRegion& part);

/// The combined effect of several consecutive steps that only crop, scale and mirror. `cut` of the image is scaled to
/// height × width; then `window` of the result is taken and mirrored if `mirrored` is set. In one operation, only the
/// required pixels are decoded and scaled, and there are no intermediate copies.
struct Placement {
  io::ImageRegion cut;
  int64_t height = 0, width = 0;
  io::ImageRegion window;
  bool mirrored = false;

  /// The placement that leaves an image unchanged.
  static Placement whole(int64_t height, int64_t width);

  bool scaled() const { return cut.height != height || cut.width != width; }
  /// Takes a part of the current result, in its coordinates.
  void crop(io::ImageRegion part);
  /// Scales the current result. Returns false and changes nothing if the result would not be one scaling of one cut.
  bool scale(int64_t new_height, int64_t new_width);
  /// The part of the image that is required: the cut, or less if the window needs less.
  io::ImageRegion needed() const;
  /// The largest factor of 1, 2, 4 and 8 by which the image may be shrunk first, so that it is never scaled up
  /// afterwards.
  int64_t shrink() const;
};

/// Draws the part of an image that random_resized_crop uses.
io::ImageRegion draw_resized_crop(int64_t height, int64_t width, std::pair<double, double> scale,
                                  std::pair<double, double> ratio, RandomStream& random);

/// A step that is completely described by its effect on a placement.
/// Params: add – returns false if it cannot be combined with the given placement; never for Placement::whole
Transform placed(std::function<bool(Placement&, RandomStream&)> add, bool deterministic);

/// Applies `placement` to an image.
/// Params:   image – the part `have` of the image that the placement describes, in pixels of that image shrunk by
///           `shrink`. It covers placement.needed(), or all of placement.cut if shrink is above 1
/// Numerics: with shrink 1, bit-identical to cropping, scaling and mirroring one after the other
///           (tests/data/images/placement_test.cpp)
/// Throws:   c10::ValueError if an intermediate image exceeds the size limits
ImageView place(const ImageView& image, const io::ImageRegion& have, int64_t shrink, const Placement& placement,
                Scratch& scratch);

}  // namespace bellows::data
