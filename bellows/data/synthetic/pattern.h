#pragma once

#include <array>
#include <cstdint>

#include "bellows/core/seed.h"

namespace bellows::data {

// The functions below use only +, -, *, / and square roots, whose results are the same on every machine.

/// Smooth random values between 0 and 1: random values on a grid, interpolated linearly.
class Clouds {
 public:
  /// Params: period – distance of the grid points in pixels
  Clouds(double period, RandomStream& random);
  double at(double x, double y) const;

 private:
  double value(int64_t column, int64_t row) const;

  double period_;
  uint64_t seed_;
};

/// A shape or a texture with random position, rotation and size.
class Pattern {
 public:
  /// Params: label – a class of synthetic_classes()
  ///         size – height and width of the image in pixels
  Pattern(int64_t label, double size, RandomStream& random);
  /// Returns the share of the foreground at a point, from 0 to 1.
  double at(double x, double y) const;

 private:
  int64_t label_;
  double x_, y_;                  ///< center of a shape, or origin of a texture
  double scale_;                  ///< radius of a shape, or period of a texture, in pixels
  double cosine_ = 1, sine_ = 0;  ///< of the rotation
  Clouds clouds_;                 ///< of the textures with random parts
};

}  // namespace bellows::data
