#pragma once

#include "bellows/data/images/transform.h"
#include "bellows/io/images/image.h"

namespace bellows::data {

/// Returns a view of a part of an image.
/// Params: part – inside the image
ImageView part_of(const ImageView& image, const io::ImageRegion& part);

/// The combined effect of consecutive steps that only crop, scale and mirror. The region `cut` of the image is scaled
/// to height × width. The region `window` of the result is then taken, and mirrored if `mirrored` is set. place()
/// applies all steps in one operation. Only the required pixels are decoded and scaled, and there are no intermediate
/// copies.
struct Placement {
  io::ImageRegion cut;
  int64_t height = 0, width = 0;
  io::ImageRegion window;
  bool mirrored = false;

  /// Returns the placement that does not change the image.
  static Placement whole(int64_t height, int64_t width);

  bool scaled() const { return cut.height != height || cut.width != width; }
  /// Crops the current result.
  /// Params: part – in coordinates of the current result
  void crop(io::ImageRegion part);
  /// Scales the current result. If one cut and one scaling cannot express the combined effect, the function changes
  /// nothing and returns false.
  bool scale(int64_t new_height, int64_t new_width);
  /// Returns the region of the image that is required. This is `cut`, or a part of it if `window` does not depend on
  /// all pixels of `cut`.
  io::ImageRegion needed() const;
  /// Returns the largest of the factors 2, 4 and 8 by which `cut` can be shrunk without becoming smaller than height ×
  /// width. Returns 1 if there is no such factor.
  int64_t shrink() const;
};

/// Draws the region of an image that random_resized_crop() uses.
io::ImageRegion draw_resized_crop(int64_t height, int64_t width, std::pair<double, double> scale,
                                  std::pair<double, double> ratio, RandomStream& random);

/// Returns a transform that is completely described by its effect on a placement.
/// Params: add – adds the effect to a placement. It returns false if the effect cannot be combined with the given
///         placement. It must accept Placement::whole()
Transform placed(std::function<bool(Placement&, RandomStream&)> add, bool deterministic);

/// Applies `placement` to an image.
/// Params:   image – the pixels of the region `have`. The original image was first shrunk by the factor `shrink`
///           have – region in pixels of the shrunk image. It must cover placement.needed(), or all of placement.cut if
///           `shrink` is above 1
/// Numerics: with a `shrink` of 1, bit-identical to cropping, scaling and mirroring one after another
///           (tests/data/images/placement_test.cpp)
/// Throws:   c10::ValueError if an intermediate image exceeds the size limits
ImageView place(const ImageView& image, const io::ImageRegion& have, int64_t shrink, const Placement& placement,
                Scratch& scratch);

}  // namespace bellows::data
