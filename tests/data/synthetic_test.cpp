#include <set>

#include "bellows/data/synthetic/synthetic_images.h"
#include "tests/data/support.h"
#include "tests/support/errors.h"

namespace bellows::data {

namespace {

using ::testing::HasSubstr;

/// Weighted by position, so that it changes with every pixel.
uint64_t pixel_checksum(const at::Tensor& image) {
  uint64_t sum = 0;
  const auto* pixels = image.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < image.numel(); ++i) sum = sum * 31 + pixels[i];
  return sum;
}

std::string png_of(const Dataset& dataset, int64_t index) {
  const Sample sample = dataset.source()->read(index);
  const Field* png = sample.find("png");
  return {reinterpret_cast<const char*>(png->bytes.data()), png->bytes.size()};
}

at::Tensor pixels_of(const Dataset& dataset, int64_t index) {
  const std::string png = png_of(dataset, index);
  return io::decode_image(std::as_bytes(std::span(png)));
}

}  // namespace

TEST(SyntheticImages, HaveClassesKeysAndStatistics) {
  const Dataset dataset = synthetic_images({.samples = 45});
  EXPECT_EQ(dataset.size(), 45);
  EXPECT_EQ(dataset.info().classes.size(), 20u);
  EXPECT_EQ(std::set<std::string>(dataset.info().classes.begin(), dataset.info().classes.end()).size(), 20u);
  EXPECT_THAT(dataset.info().name, HasSubstr("synthetic"));
  EXPECT_EQ(dataset.info().image_size, (std::vector<int64_t>{64, 64, 3}));
  for (size_t channel = 0; channel < 3; ++channel) {
    EXPECT_NEAR(dataset.info().mean.at(channel), 0.5, 0.05);
    EXPECT_NEAR(dataset.info().std.at(channel), 0.28, 0.05);
  }
  const Sample sample = dataset.source()->read(41);
  EXPECT_EQ(sample.key, "000041");
  EXPECT_EQ(sample.id, 41);
  const auto& label = sample.find("cls")->bytes;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(label.data()), label.size()), "1");
  EXPECT_EQ(pixels_of(dataset, 41).sizes(), (c10::IntArrayRef{64, 64, 3}));
}

// The checksums were written down once: they must be the same with every compiler and on every machine.
TEST(SyntheticImages, HaveTheSamePixelsEverywhere) {
  uint64_t sum = 0;
  for (int64_t label = 0; label < 20; ++label) sum = sum * 31 + pixel_checksum(synthetic_image(label, 64, 1));
  EXPECT_EQ(sum, 1475459354892434179u);
  EXPECT_EQ(pixel_checksum(synthetic_image(4, 33, 7)), 13334009469363564072u);
}

TEST(SyntheticImages, DependOnSeedSplitSizeAndIndexOnly) {
  const Dataset small = synthetic_images({.samples = 30}), large = synthetic_images({.samples = 60});
  for (const int64_t i : {0, 7, 29}) EXPECT_EQ(png_of(small, i), png_of(large, i));
  EXPECT_EQ(small.info().mean, large.info().mean);
  std::set<std::string> images;
  for (int64_t i = 0; i < 60; ++i) images.insert(png_of(large, i));
  for (const SyntheticImageOptions& other :
       {SyntheticImageOptions{.samples = 30, .seed = 2}, SyntheticImageOptions{.samples = 30, .split = "test"}}) {
    const Dataset dataset = synthetic_images(other);
    for (int64_t i = 0; i < 30; ++i) images.insert(png_of(dataset, i));
  }
  EXPECT_EQ(images.size(), 120u) << "no image occurs twice";
}

TEST(SyntheticImages, HaveContrastInAllSizes) {
  for (const int64_t size : {16, 64, 512}) EXPECT_EQ(synthetic_image(0, size, 3).size(0), size);
  for (int64_t label = 0; label < 20; ++label) {
    const at::Tensor image = synthetic_image(label, 64, 5);
    const auto* pixels = image.const_data_ptr<uint8_t>();
    EXPECT_GT(*std::max_element(pixels, pixels + image.numel()) - *std::min_element(pixels, pixels + image.numel()), 40)
        << synthetic_classes()[static_cast<size_t>(label)];
  }
}

TEST(SyntheticImages, BadOptionsAreNamed) {
  EXPECT_THAT(message_of([] { synthetic_images({.samples = 0}); }), HasSubstr("at least one sample, got 0"));
  EXPECT_THAT(message_of([] { synthetic_images({.size = 8}); }), HasSubstr("a size from 16 to 512 pixels, got 8"));
  EXPECT_THAT(message_of([] { synthetic_image(20, 64, 1); }), HasSubstr("a class from 0 to 19, got 20"));
  EXPECT_THAT(message_of([] { synthetic_images({.samples = 3}).source()->read(3); }), HasSubstr("below 3, got 3"));
}

}  // namespace bellows::data
