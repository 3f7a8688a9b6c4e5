#include <algorithm>
#include <cmath>

#include "bellows/data/images/image_ops.h"

// Hue by way of Pillow's 8-bit HSV, with its types: floats, doubles where it has them.

namespace bellows::data {

namespace {

struct Hsv {
  uint8_t h = 0, s = 0, v = 0;
};

Hsv to_hsv(const uint8_t* rgb) {
  const uint8_t r = rgb[0], g = rgb[1], b = rgb[2];
  const uint8_t most = std::max({r, g, b}), least = std::min({r, g, b});
  if (most == least) return {0, 0, most};
  const auto range = static_cast<float>(most - least), s = range / static_cast<float>(most);
  const float rc = static_cast<float>(most - r) / range, gc = static_cast<float>(most - g) / range,
              bc = static_cast<float>(most - b) / range;
  float h = 0;
  if (r == most) {
    h = bc - gc;
  } else if (g == most) {
    h = static_cast<float>(2.0 + rc - bc);
  } else {
    h = static_cast<float>(4.0 + gc - rc);
  }
  h = static_cast<float>(std::fmod(h / 6.0 + 1.0, 1.0));
  return {static_cast<uint8_t>(std::clamp(static_cast<int>(h * 255.0), 0, 255)),
          static_cast<uint8_t>(std::clamp(static_cast<int>(s * 255.0), 0, 255)), most};
}

void to_rgb(const Hsv& hsv, uint8_t* rgb) {
  if (hsv.s == 0) {
    rgb[0] = rgb[1] = rgb[2] = hsv.v;
    return;
  }
  const auto h = static_cast<float>(hsv.h), v = static_cast<float>(hsv.v);
  const auto sector = static_cast<int>(std::floor(h * 6.0 / 255.0));
  const auto f = static_cast<float>(h * 6.0 / 255.0 - static_cast<float>(sector));
  const auto s = static_cast<float>(static_cast<float>(hsv.s) / 255.0);
  const auto level = [v](double share) {
    return static_cast<uint8_t>(std::clamp(static_cast<int>(std::round(v * share)), 0, 255));
  };
  const uint8_t p = level(1.0 - s), q = level(1.0 - s * f), t = level(1.0 - s * (1.0 - f));
  const uint8_t parts[6][3] = {{hsv.v, t, p}, {q, hsv.v, p}, {p, hsv.v, t},
                               {p, q, hsv.v}, {t, p, hsv.v}, {hsv.v, p, q}};
  std::copy_n(parts[sector % 6], 3, rgb);
}

}  // namespace

ImageView adjust_hue(const ImageView& image, double turn, Scratch& scratch) {
  if (image.channels < 3) return image;
  const auto shift = static_cast<uint8_t>(static_cast<int>(turn * 255));
  uint8_t* out = scratch.next(static_cast<size_t>(image.height * image.width * 3));
  uint8_t* to = out;
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < image.width; ++x, to += 3) {
      Hsv hsv = to_hsv(image.at(y, x));
      hsv.h = static_cast<uint8_t>(hsv.h + shift);
      to_rgb(hsv, to);
    }
  }
  return {out, image.height, image.width, 3, image.width * 3, 3};
}

}  // namespace bellows::data
