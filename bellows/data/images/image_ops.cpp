#include "bellows/data/images/image_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

namespace bellows::data {

namespace {

using Table = std::array<uint8_t, 256>;
using Histogram = std::array<int64_t, 256>;

ImageView packed_view(const uint8_t* pixels, const ImageView& like) {
  return {pixels, like.height, like.width, like.channels, like.width * like.channels, like.channels};
}

/// Calls change(from, to) for every pixel.
template <class F>
ImageView map_pixels(const ImageView& image, Scratch& scratch, const F& change) {
  uint8_t* out = scratch.next(static_cast<size_t>(image.height * image.width * image.channels));
  uint8_t* to = out;
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* from = image.at(y, 0);
    for (int64_t x = 0; x < image.width; ++x, from += image.pixel_stride, to += image.channels) change(from, to);
  }
  return packed_view(out, image);
}

ImageView map_values(const ImageView& image, Scratch& scratch, const Table& table) {
  const int64_t channels = image.channels;
  return map_pixels(image, scratch, [&](const uint8_t* from, uint8_t* to) {
    for (int64_t c = 0; c < channels; ++c) to[c] = table[from[c]];
  });
}

template <class F>
Table table_of(const F& change) {
  Table table;
  for (int value = 0; value < 256; ++value) table[static_cast<size_t>(value)] = change(value);
  return table;
}

unsigned luma_of(const uint8_t* pixel, int64_t channels) {
  return channels < 3 ? pixel[0] : (pixel[0] * 19595u + pixel[1] * 38470u + pixel[2] * 7471u + 0x8000u) >> 16;
}

/// Pillow's Image.blend: interpolates from `base` to `value` by `factor`, and extrapolates beyond 1.
uint8_t blended(int base, int value, float factor) {
  const float mixed = static_cast<float>(base) + factor * static_cast<float>(value - base);
  return static_cast<uint8_t>(std::clamp(mixed, 0.0f, 255.0f));
}

uint8_t clipped(double value) {
  return static_cast<uint8_t>(std::clamp(value, 0.0, 255.0));
}

Histogram histogram_of(const ImageView& image, int64_t channel) {
  Histogram counts{};
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* from = image.at(y, 0) + channel;
    for (int64_t x = 0; x < image.width; ++x, from += image.pixel_stride) ++counts[*from];
  }
  return counts;
}

/// Applies a table per channel, computed from the channel's histogram.
template <class F>
ImageView map_by_histogram(const ImageView& image, Scratch& scratch, const F& make_table) {
  std::array<Table, 4> tables;
  const int64_t channels = std::min<int64_t>(image.channels, 4);
  for (int64_t c = 0; c < channels; ++c) tables[static_cast<size_t>(c)] = make_table(histogram_of(image, c));
  return map_pixels(image, scratch, [&](const uint8_t* from, uint8_t* to) {
    for (int64_t c = 0; c < channels; ++c) to[c] = tables[static_cast<size_t>(c)][from[c]];
  });
}

Table stretched(const Histogram& counts) {
  const auto is_there = [](int64_t count) { return count > 0; };
  const auto low = std::find_if(counts.begin(), counts.end(), is_there) - counts.begin();
  const auto high = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), is_there) - 1;
  if (high <= low) return table_of([](int value) { return static_cast<uint8_t>(value); });
  const double scale = 255.0 / static_cast<double>(high - low), offset = -static_cast<double>(low) * scale;
  return table_of([=](int value) { return clipped(value * scale + offset); });
}

Table equalized(const Histogram& counts) {
  int64_t sum = 0, last = 0, values = 0;
  for (const int64_t count : counts) {
    sum += count;
    values += count > 0;
    if (count > 0) last = count;
  }
  const int64_t step = (sum - last) / 255;
  if (values <= 1 || step == 0) return table_of([](int value) { return static_cast<uint8_t>(value); });
  int64_t n = step / 2;
  return table_of([&](int value) {
    const int64_t level = std::min<int64_t>(n / step, 255);
    n += counts[static_cast<size_t>(value)];
    return static_cast<uint8_t>(level);
  });
}

}  // namespace

ImageView adjust_brightness(const ImageView& image, double factor, Scratch& scratch) {
  const auto f = static_cast<float>(factor);
  return map_values(image, scratch, table_of([=](int value) { return blended(0, value, f); }));
}

ImageView adjust_contrast(const ImageView& image, double factor, Scratch& scratch) {
  uint64_t sum = 0;
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* from = image.at(y, 0);
    for (int64_t x = 0; x < image.width; ++x, from += image.pixel_stride) sum += luma_of(from, image.channels);
  }
  const auto mean = static_cast<int>(static_cast<double>(sum) / static_cast<double>(image.height * image.width) + 0.5);
  const auto f = static_cast<float>(factor);
  return map_values(image, scratch, table_of([=](int value) { return blended(mean, value, f); }));
}

ImageView adjust_saturation(const ImageView& image, double factor, Scratch& scratch) {
  if (image.channels < 3) return image;
  const auto f = static_cast<float>(factor);
  return map_pixels(image, scratch, [f](const uint8_t* from, uint8_t* to) {
    const auto gray = static_cast<int>(luma_of(from, 3));
    for (int c = 0; c < 3; ++c) to[c] = blended(gray, from[c], f);
  });
}

ImageView to_grayscale(const ImageView& image, Scratch& scratch) {
  if (image.channels < 3) return image;
  return map_pixels(image, scratch, [](const uint8_t* from, uint8_t* to) {
    to[0] = to[1] = to[2] = static_cast<uint8_t>(luma_of(from, 3));
  });
}

/// Pillow's smooth filter keeps the image's border; it sums the rows from the bottom up.
ImageView adjust_sharpness(const ImageView& image, double factor, Scratch& scratch) {
  constexpr float side = 1.0f / 13.0f, middle = 5.0f / 13.0f;
  const auto f = static_cast<float>(factor);
  const int64_t c = image.channels, w = image.width, h = image.height, step = image.pixel_stride;
  uint8_t* out = scratch.next(static_cast<size_t>(h * w * c));
  image.copy_to(out, w * c);
  const auto row_sum = [step](const uint8_t* at, float center) {
    return static_cast<float>(at[-step]) * side + static_cast<float>(*at) * center +
           static_cast<float>(at[step]) * side;
  };
  const auto smooth_at = [&](const uint8_t* at) {
    float sum = 0.5f;
    sum += row_sum(at + image.row_stride, side);
    sum += row_sum(at, middle);
    sum += row_sum(at - image.row_stride, side);
    return static_cast<int>(sum);
  };
  uint8_t* to = out;
  for (int64_t y = 0; y < h; ++y) {
    for (int64_t x = 0; x < w; ++x) {
      const bool inside = y > 0 && y + 1 < h && x > 0 && x + 1 < w;
      const uint8_t* at = image.at(y, x);
      for (const uint8_t* end = at + c; at < end; ++at) *to++ = blended(inside ? smooth_at(at) : *at, *at, f);
    }
  }
  return packed_view(out, image);
}

ImageView posterize(const ImageView& image, int bits, Scratch& scratch) {
  const int mask = 256 - (1 << (8 - bits));
  return map_values(image, scratch, table_of([=](int value) { return static_cast<uint8_t>(value & mask); }));
}

ImageView solarize(const ImageView& image, double threshold, Scratch& scratch) {
  return map_values(image, scratch,
                    table_of([=](int value) { return static_cast<uint8_t>(value < threshold ? value : 255 - value); }));
}

ImageView autocontrast(const ImageView& image, Scratch& scratch) {
  return map_by_histogram(image, scratch, stretched);
}

ImageView equalize(const ImageView& image, Scratch& scratch) {
  return map_by_histogram(image, scratch, equalized);
}

namespace {

// Hue in Pillow's 8-bit HSV, with the same mix of float and double.

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

namespace {

// Pillow's affine transform with nearest-pixel sampling, and torchvision's matrices for it.

/// The pixel at (x, y) of the result comes from (m0 x + m1 y + m2, m3 x + m4 y + m5).
using Matrix = std::array<double, 6>;

struct Fixed {  // 16 fractional bits
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
