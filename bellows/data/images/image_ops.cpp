#include "bellows/data/images/image_ops.h"

#include <algorithm>
#include <array>
#include <cmath>

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

/// Pillow's Image.blend: `factor` of the way from `base` to `value`, and beyond.
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

/// A table for each channel, made from its histogram.
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

/// Pillow's smooth filter keeps the picture's border; its sums go row by row from below.
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

}  // namespace bellows::data
