#include "bellows/kernels/pixels.h"

#include <gtest/gtest.h>

#include "bellows/core/seed.h"

namespace bellows::kernels {

namespace {

PixelScale imagenet(int64_t channels) {
  const std::vector<float> mean = {0.485f, 0.456f, 0.406f, 0.5f}, std = {0.229f, 0.224f, 0.225f, 0.3f};
  return {{mean.begin(), mean.begin() + channels}, {std.begin(), std.begin() + channels}};
}

std::vector<uint8_t> written(bool fast, const PixelImage& in, PixelType type, bool channels_last) {
  std::vector<uint8_t> out(static_cast<size_t>(in.height * in.width * in.channels * 4));
  (fast ? write_pixels : [](const PixelImage& i, const PixelScale& s, PixelType t, bool last, void* o) {
    ref::write_pixels(i, s, t, last, o);
  })(in, imagenet(in.channels), type, channels_last, out.data());
  return out;
}

}  // namespace

TEST(Pixels, EqualTheReference) {
  RandomStream random(1);
  for (const int64_t channels : {1, 2, 3, 4}) {
    for (const auto& [height, width] : {std::pair{1, 1}, {3, 15}, {2, 16}, {5, 17}, {4, 224}, {3, 65}}) {
      const int64_t row = width * channels + 7;
      std::vector<uint8_t> in(static_cast<size_t>((height - 1) * row + width * channels));
      for (uint8_t& value : in) value = static_cast<uint8_t>(random.next());
      in.shrink_to_fit();
      const uint8_t *first = in.data(), *right = first + (width - 1) * channels, *below = first + (height - 1) * row;
      for (const PixelType type : {PixelType::u8, PixelType::f32, PixelType::bf16}) {
        for (const bool last : {false, true}) {
          for (const PixelImage& image : {PixelImage{first, height, width, channels, row, channels},
                                          {right, height, width, channels, row, -channels},
                                          {below, height, width, channels, -row, channels},
                                          {first, height, (width + 1) / 2, channels, row, 2 * channels}}) {
            EXPECT_EQ(written(true, image, type, last), written(false, image, type, last))
                << height << " x " << width << " x " << channels << " type " << static_cast<int>(type) << last;
          }
        }
      }
    }
  }
}

// Whether vectors are exact is found out, not assumed; here is that they usually are, and fall back where not.
TEST(Pixels, VectorsAreUsedWhereTheyAreExact) {
  EXPECT_FALSE(imagenet(2).vectors_exact());
  RandomStream random(2);
  int exact = 0;
  for (int i = 0; i < 200; ++i) {
    const PixelScale scale({static_cast<float>(random.uniform())}, {static_cast<float>(0.01 + random.uniform())});
    exact += scale.vectors_exact();
    std::vector<uint8_t> all(256);
    for (size_t v = 0; v < 256; ++v) all[v] = static_cast<uint8_t>(v);
    std::vector<float> out(256);
    write_pixels({all.data(), 1, 256, 1, 256, 1}, scale, PixelType::f32, false, out.data());
    for (size_t v = 0; v < 256; ++v) ASSERT_EQ(out[v], scale.table(0)[v]);
  }
  RecordProperty("exact_of_200", exact);
  const PixelScale tiny({0.5f}, {1e-42f});  // no inverse of it is finite
  EXPECT_FALSE(tiny.vectors_exact());
}

}  // namespace bellows::kernels
