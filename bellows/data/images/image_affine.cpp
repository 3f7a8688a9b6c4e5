#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "bellows/data/images/image_ops.h"

// Pillow's affine transform with the nearest pixel, and torchvision's matrices for it.

namespace bellows::data {

namespace {

/// The pixel at (x, y) of the result comes from (m0 x + m1 y + m2, m3 x + m4 y + m5).
using Matrix = std::array<double, 6>;

struct Fixed {  // 16 bits behind the point
  int64_t x, y;
};

int64_t to_fixed(double value) {
  return static_cast<int64_t>(std::floor(value * 65536.0 + 0.5));
}

uint8_t* black(const ImageView& image, Scratch& scratch) {
  const auto bytes = static_cast<size_t>(image.height * image.width * image.channels);
  uint8_t* out = scratch.next(bytes);
  std::memset(out, 0, bytes);
  return out;
}

ImageView affine(const ImageView& image, const Matrix& m, Scratch& scratch) {
  const int64_t c = image.channels;
  uint8_t* const out = black(image, scratch);
  uint8_t* to = out;
  const Fixed right{to_fixed(m[0]), to_fixed(m[3])}, down{to_fixed(m[1]), to_fixed(m[4])};
  Fixed row{to_fixed(m[2] + m[0] * 0.5 + m[1] * 0.5), to_fixed(m[5] + m[3] * 0.5 + m[4] * 0.5)};
  for (int64_t y = 0; y < image.height; ++y, row = {row.x + down.x, row.y + down.y}) {
    Fixed at = row;
    for (int64_t x = 0; x < image.width; ++x, to += c, at = {at.x + right.x, at.y + right.y}) {
      const int64_t from_x = at.x >> 16, from_y = at.y >> 16;
      if (from_x < 0 || from_x >= image.width || from_y < 0 || from_y >= image.height) continue;
      std::copy_n(image.at(from_y, from_x), c, to);
    }
  }
  return {out, image.height, image.width, c, image.width * c, c};
}

double round_15(double value) {
  return std::nearbyint(value * 1e15) / 1e15;
}

}  // namespace

ImageView shear_x(const ImageView& image, double slope, Scratch& scratch) {
  return affine(image, {1, std::tan(std::atan(slope)), 0, 0, 1, 0}, scratch);
}

ImageView shear_y(const ImageView& image, double slope, Scratch& scratch) {
  const double angle = std::atan(slope), cosine = std::cos(angle);
  return affine(image, {1, 0, 0, std::sin(angle) / cosine, std::cos(angle) / cosine, 0}, scratch);
}

ImageView translate(const ImageView& image, int64_t right, int64_t down, Scratch& scratch) {
  const int64_t c = image.channels;
  uint8_t* const out = black(image, scratch);
  for (int64_t y = std::max<int64_t>(0, down); y < std::min(image.height, image.height + down); ++y) {
    for (int64_t x = std::max<int64_t>(0, right); x < std::min(image.width, image.width + right); ++x)
      std::copy_n(image.at(y - down, x - right), c, out + (y * image.width + x) * c);
  }
  return {out, image.height, image.width, c, image.width * c, c};
}

ImageView rotate(const ImageView& image, double degrees, Scratch& scratch) {
  const double turn = std::fmod(degrees, 360.0), angle = -(turn < 0 ? turn + 360.0 : turn) * std::numbers::pi / 180.0;
  const double x = static_cast<double>(image.width) / 2.0, y = static_cast<double>(image.height) / 2.0;
  Matrix m{round_15(std::cos(angle)),  round_15(std::sin(angle)), 0,
           round_15(-std::sin(angle)), round_15(std::cos(angle)), 0};
  m[2] = m[0] * -x + m[1] * -y + x;
  m[5] = m[3] * -x + m[4] * -y + y;
  return affine(image, m, scratch);
}

}  // namespace bellows::data
