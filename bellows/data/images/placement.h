#pragma once

#include "bellows/data/images/transform.h"
#include "bellows/io/images/image.h"

namespace bellows::data {

/// A part of a picture, without copying.
/// Params: part – within the picture
ImageView part_of(const ImageView& image, const io::ImageRegion& part);

/// What several steps in a row do to a picture when they only cut, scale and mirror: `cut` of the picture is scaled to
/// height × width, of that `window` is taken, and mirrored if so. Done at once, only what is needed is decoded and
/// scaled, and nothing is copied in between.
struct Placement {
  io::ImageRegion cut;
  int64_t height = 0, width = 0;
  io::ImageRegion window;
  bool mirrored = false;

  /// Of a picture to which nothing is done.
  static Placement whole(int64_t height, int64_t width);

  bool scaled() const { return cut.height != height || cut.width != width; }
  /// Takes a part of what comes out so far, in its coordinates.
  void crop(io::ImageRegion part);
  /// Scales what comes out so far. False, and nothing is changed, where that is not one scaling of one cut.
  bool scale(int64_t new_height, int64_t new_width);
  /// The part of the picture that is looked at: the cut, or less where the window needs less.
  io::ImageRegion needed() const;
  /// By how much, of 1, 2, 4 and 8, a picture may be shrunk before, so that scaling still makes it smaller.
  int64_t shrink() const;
};

/// What random_resized_crop takes of a picture.
io::ImageRegion draw_resized_crop(int64_t height, int64_t width, std::pair<double, double> scale,
                                  std::pair<double, double> ratio, RandomStream& random);

/// A step that is all said by what it adds to a placement.
/// Params: add – false where it cannot be added to one that is there already; never so for Placement::whole
Transform placed(std::function<bool(Placement&, RandomStream&)> add, bool deterministic);

/// Does `placement` to a picture.
/// Params:   image – `have` of the picture that the placement is about, in pixels of that picture shrunk by `shrink`;
///           it covers placement.needed(), at a shrink above 1 all of placement.cut
/// Numerics: at shrink 1, the bits of cutting, scaling and mirroring one after the other
///           (tests/data/images/placement_test.cpp)
/// Throws:   c10::ValueError – a picture above the limits on the way
ImageView place(const ImageView& image, const io::ImageRegion& have, int64_t shrink, const Placement& placement,
                Scratch& scratch);

}  // namespace bellows::data
