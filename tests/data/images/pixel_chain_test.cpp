#include "bellows/data/images/pixel_chain.h"

#include <ATen/ops/equal.h>

#include "tests/data/images/pictures.h"

namespace bellows::data::testing {
namespace {

using ::testing::HasSubstr;

std::vector<uint8_t> noise_picture(int64_t values) {
  RandomStream random(8);
  std::vector<uint8_t> pixels(static_cast<size_t>(values));
  for (uint8_t& value : pixels) value = static_cast<uint8_t>(random.next());
  return pixels;
}

/// Each step over all pixels before the next, as floats [H, W, C].
template <class... Steps>
std::vector<float> one_after_the_other(const ImageView& image, RandomStream& random, const Steps&... steps) {
  const std::vector<uint8_t> pixels = pixels_of(image);
  std::vector<float> values(pixels.begin(), pixels.end());
  const auto run = [&](const auto& made) {
    const auto step = detail::step_for(made, image, random);
    using Step = std::decay_t<decltype(step)>;
    for (size_t i = 0; i < values.size(); i += static_cast<size_t>(image.channels)) {
      if constexpr (detail::PixelStep<Step>) {
        const Pixel pixel = step(Pixel{values[i], values[i + 1], values[i + 2]});
        std::copy(pixel.begin(), pixel.end(), values.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        for (size_t c = 0; c < static_cast<size_t>(image.channels); ++c) {
          if constexpr (detail::ValueStep<Step>) {
            values[i + c] = step(values[i + c]);
          } else {
            values[i + c] = step(values[i + c], static_cast<int64_t>(c));
          }
        }
      }
    }
  };
  (run(steps), ...);
  return values;
}

const Normalize kNormalize{{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};

TEST(PixelChain, EqualsItsStepsOneAfterTheOther) {
  const auto gamma = [](float value) { return std::pow(value / 255.0f, 0.8f) * 255.0f; };
  const auto swap = [](const Pixel& p) { return Pixel{p[2], 0.5f * p[1] + 0.25f * p[0] + 0.25f * p[2], p[0]}; };
  const auto chain = pixel_chain(RandomBrightness{0.4}, gamma, swap, RandomContrast{0.5}, kNormalize);
  for (const auto& [height, width] : {std::pair{1, 1}, {3, 127}, {2, 128}, {5, 300}}) {
    const auto pixels = noise_picture(int64_t{height} * width * 3);
    const ImageView plain{pixels.data(), height, width, 3, int64_t{width} * 3, 3};
    const ImageView mirrored{plain.at(0, width - 1), height, width, 3, int64_t{width} * 3, -3};
    for (const ImageView& image : {plain, mirrored}) {
      RandomStream random(3), same(3);
      std::vector<float> out(pixels.size()), planes(pixels.size());
      chain(image, random, {out.data(), c10::ScalarType::Float, true});
      const auto expected =
          one_after_the_other(image, same, RandomBrightness{0.4}, gamma, swap, RandomContrast{0.5}, kNormalize);
      EXPECT_EQ(out, expected) << height << " x " << width;
      RandomStream again(3);
      chain(image, again, {planes.data(), c10::ScalarType::Float, false});
      const int64_t area = int64_t{height} * width;
      for (int64_t i = 0; i < area * 3; ++i)
        ASSERT_EQ(planes[static_cast<size_t>(i % 3 * area + i / 3)], out[static_cast<size_t>(i)]);
    }
  }
}

TEST(PixelChain, NormalizeAloneEqualsTheNormalizer) {
  const auto pixels = noise_picture(40 * 50 * 3);
  const ImageView image{pixels.data(), 40, 50, 3, 150, 3};
  const Normalizer normalizer({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}, 3);
  for (const auto type : {c10::ScalarType::Float, c10::ScalarType::BFloat16}) {
    for (const bool last : {false, true}) {
      std::vector<float> chained(pixels.size()), normalized(pixels.size());
      RandomStream random(0);
      pixel_chain(kNormalize)(image, random, {chained.data(), type, last});
      normalizer.run(image, normalized.data(), last, type);
      EXPECT_EQ(chained, normalized);
    }
  }
}

TEST(PixelChain, RoundsToBytesAndTakesGray) {
  const std::vector<uint8_t> pixels{0, 1, 2, 100, 200, 255};
  const ImageView image{pixels.data(), 2, 3, 1, 3, 1};
  RandomStream random(0);
  std::vector<uint8_t> out(6);
  pixel_chain([](float value) { return value * 1.5f - 1; })(image, random, {out.data(), c10::ScalarType::Byte, false});
  EXPECT_EQ(out, (std::vector<uint8_t>{0, 0, 2, 149, 255, 255}));  // 0.5 goes to the even 0
  pixel_chain([](float value) { return value > 50 ? std::nanf("") : -value; })(
      image, random, {out.data(), c10::ScalarType::Byte, false});
  EXPECT_EQ(out, std::vector<uint8_t>(6, 0));
  const auto colors = pixel_chain([](const Pixel& pixel) { return pixel; });
  EXPECT_THAT(error_of([&] {
                colors(image, random, {out.data(), c10::ScalarType::Byte, false});
              }),
              HasSubstr("expected an image with 3 channels, got 1"));
}

TEST(PixelChain, IsTheLoadersLastPass) {
  const Dataset set = open(kDigits, {.split = "test"}).decode("rgb").batch(16);
  const Dataset chained = set.pixels(pixel_chain(kNormalize));
  Loader a = set.normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}).loader(), b = chained.loader();
  EXPECT_EQ(fingerprints(a, 0), fingerprints(b, 0));
  Loader random = set.pixels(pixel_chain(RandomBrightness{0.5}, kNormalize)).loader();
  const auto first = fingerprints(random, 0);
  EXPECT_EQ(first, fingerprints(random, 0));
  EXPECT_NE(first, fingerprints(random, 1));
  EXPECT_THAT(error_of([&] { set.pixels({}); }), HasSubstr("empty function"));
}

}  // namespace
}  // namespace bellows::data::testing
