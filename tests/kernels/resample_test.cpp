#include "bellows/kernels/resample.h"

#include <gtest/gtest.h>

#include <vector>

#include "bellows/core/seed.h"

namespace bellows::kernels {

namespace {

/// Weights that add up to 2^22 or, as roundings do, a little more or less.
struct Axis {
  Axis(int64_t in, int64_t out, RandomStream& random) : in_size(in) {
    room = (std::min<int64_t>(in, 11) + 3) / 4 * 4;
    for (int64_t i = 0; i < out; ++i) {
      const auto count = 1 + static_cast<int32_t>(random.below(static_cast<uint64_t>(std::min<int64_t>(in, 11))));
      taps.push_back(count);
      first.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(in - count + 1))));
      int32_t left = 1 << kResampleBits;
      for (int32_t k = 0; k < room; ++k) {
        const bool last = k == count - 1;
        const auto w = k >= count ? 0
                       : last     ? left
                                  : static_cast<int32_t>(random.below(static_cast<uint64_t>(left) + 1));
        weights.push_back(w + (k < count && i % 3 == 0 ? 1 : 0));
        left -= w;
      }
    }
  }
  ResampleAxis view() const {
    return {static_cast<int64_t>(first.size()), room, first.data(), taps.data(), weights.data()};
  }
  int64_t in_size, room;
  std::vector<int32_t> first, taps, weights;
};

/// In memory that ends with the last pixel, so that AddressSanitizer sees a step beyond.
std::vector<uint8_t> noise(size_t bytes, RandomStream& random) {
  std::vector<uint8_t> values(bytes);
  for (uint8_t& value : values) value = random.below(4) == 0 ? 255 : static_cast<uint8_t>(random.next());
  values.shrink_to_fit();
  return values;
}

struct Size {
  int64_t height, width, out;
};
constexpr Size sizes[] = {{1, 1, 1},   {1, 5, 9},   {3, 2, 1},    {4, 17, 15},
                          {5, 16, 16}, {15, 33, 7}, {17, 64, 31}, {40, 3, 50}};

}  // namespace

TEST(Resample, RowsEqualTheReference) {
  RandomStream random(1);
  for (const Size& size : sizes) {
    for (const int64_t channels : {1, 2, 3, 4}) {
      const int64_t stride = size.width * channels + static_cast<int64_t>(random.below(3));
      const auto in = noise(static_cast<size_t>((size.height - 1) * stride + size.width * channels), random);
      const ResamplePixels pixels{in.data(), size.height, size.width, channels, stride};
      const Axis axis(size.width, size.out, random);
      const int64_t out_stride = size.out * channels + 1;
      const auto bytes = static_cast<size_t>(size.height * out_stride);
      std::vector<uint8_t> fast(bytes), slow(bytes);
      resample_rows(pixels, axis.view(), fast.data(), out_stride);
      ref::resample_rows(pixels, axis.view(), slow.data(), out_stride);
      for (int64_t y = 0; y < size.height; ++y)
        fast[static_cast<size_t>((y + 1) * out_stride - 1)] = slow[static_cast<size_t>((y + 1) * out_stride - 1)];
      EXPECT_EQ(fast, slow) << size.height << " x " << size.width << " x " << channels << " to " << size.out;
    }
  }
}

TEST(Resample, ColumnsEqualTheReference) {
  RandomStream random(2);
  for (const Size& size : sizes) {
    for (const int64_t channels : {1, 3}) {
      for (const int64_t width : {size.width, int64_t{224}}) {
        const int64_t stride = width * channels + 5;
        const auto in = noise(static_cast<size_t>((size.height - 1) * stride + width * channels), random);
        const ResamplePixels pixels{in.data(), size.height, width, channels, stride};
        const Axis axis(size.height, size.out, random);
        const auto bytes = static_cast<size_t>(size.out * width * channels);
        std::vector<uint8_t> fast(bytes), slow(bytes);
        resample_columns(pixels, axis.view(), fast.data());
        ref::resample_columns(pixels, axis.view(), slow.data());
        EXPECT_EQ(fast, slow) << size.height << " x " << width << " x " << channels << " to " << size.out;
      }
    }
  }
}

}  // namespace bellows::kernels
