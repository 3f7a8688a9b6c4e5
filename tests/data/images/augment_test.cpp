#include "bellows/data/images/augment.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "bellows/data/images/image_ops.h"
#include "bellows/data/images/placement.h"
#include "bellows/io/tensors/safetensors.h"
#include "tests/data/images/pictures.h"

namespace bellows::data::testing {
namespace {

using ::testing::HasSubstr;

const NamedTensors& augment_goldens() {
  static const NamedTensors tensors = io::load_safetensors(kGoldens + "augment.safetensors");
  return tensors;
}

at::Tensor augment_golden(const std::string& name) {
  for (const auto& [known, tensor] : augment_goldens()) {
    if (known == name) return tensor;
  }
  ADD_FAILURE() << "no golden " << name;
  return {};
}

std::vector<std::string> split(const std::string& name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '.' && parts.size() < 4) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

ImageView adjusted(const std::string& step, const ImageView& image, double by, Scratch& scratch) {
  if (step == "brightness") return adjust_brightness(image, by, scratch);
  if (step == "contrast") return adjust_contrast(image, by, scratch);
  if (step == "saturation") return adjust_saturation(image, by, scratch);
  if (step == "sharpness") return adjust_sharpness(image, by, scratch);
  if (step == "hue") return adjust_hue(image, by, scratch);
  return to_grayscale(image, scratch);
}

/// `step` of the picture gives the same whether it lies plainly in memory or mirrored with gaps between its rows.
template <class F>
void expect_pixels(const at::Tensor& input, const at::Tensor& expected, const std::string& name, const F& step) {
  Scratch scratch;
  const ImageView image = view_of(input);
  EXPECT_EQ(pixels_of(step(image, scratch)), pixels_of(view_of(expected))) << name;
  const int64_t row = image.width * image.channels + 5;
  std::vector<uint8_t> mirrored(static_cast<size_t>(image.height * row));
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < image.width; ++x) {
      const int64_t at = y * row + (image.width - 1 - x) * image.channels;
      std::copy_n(image.at(y, x), image.channels, mirrored.data() + at);
    }
  }
  const ImageView strange{mirrored.data() + (image.width - 1) * image.channels,
                          image.height,
                          image.width,
                          image.channels,
                          row,
                          -image.channels};
  EXPECT_EQ(pixels_of(step(strange, scratch)), pixels_of(view_of(expected))) << name << " mirrored";
}

TEST(Adjust, EqualsPillow) {
  int compared = 0;
  for (const auto& [name, expected] : augment_goldens()) {
    const auto parts = split(name);
    if (parts[0] != "adjust" || parts.size() < 4) continue;
    const auto by = std::stod(parts[3]);
    expect_pixels(augment_golden("adjust." + parts[1]), expected, name,
                  [&](const ImageView& image, Scratch& scratch) { return adjusted(parts[2], image, by, scratch); });
    ++compared;
  }
  EXPECT_EQ(compared, 5 * 26);
}

TEST(RandAugment, EachStepEqualsTorchvision) {
  int compared = 0;
  for (const auto& [name, expected] : augment_goldens()) {
    const auto parts = split(name);
    if (parts[0] != "augment" || parts.size() < 4) continue;
    const auto op = static_cast<AugmentOp>(std::stoi(parts[2]));
    const int magnitude = std::stoi(parts[3]);
    const bool negative = parts[3].ends_with(".-1");
    expect_pixels(augment_golden("augment." + parts[1]), expected, name, [&](const ImageView& image, Scratch& scratch) {
      return apply_augment(image, op, magnitude, negative, scratch);
    });
    ++compared;
  }
  EXPECT_EQ(compared, 2 * 4 * (9 * 2 + 5));
}

TEST(RandAugment, DrawsAllStepsAndDependsOnTheStreamAlone) {
  const at::Tensor image = augment_golden("augment.3");
  const Transform one = rand_augment(1, 9), two = rand_augment(2, 30);
  std::set<std::vector<uint8_t>> seen;
  const auto run = [&](const Transform& step, uint64_t seed) {
    Scratch scratch;
    RandomStream random(seed);
    return pixels_of(step.run(view_of(image), scratch, random));
  };
  for (uint64_t seed = 0; seed < 600; ++seed) seen.insert(run(one, seed));
  EXPECT_EQ(seen.size(), 9u * 2 + 5);  // nine go either way
  EXPECT_EQ(run(two, 5), run(two, 5));
  EXPECT_THAT(error_of([] { rand_augment(2, 31); }), HasSubstr("magnitude in [0, 31), got 31"));
  EXPECT_THAT(error_of([] { rand_augment(-1); }), HasSubstr("0 to 100 ops, got -1"));
}

TEST(ColorJitter, StaysWithinItsAmountsInEveryOrder) {
  const at::Tensor image = augment_golden("adjust.rgb");
  const auto run = [&](const ColorJitter& amounts, uint64_t seed) {
    Scratch scratch;
    RandomStream random(seed);
    return pixels_of(color_jitter(amounts).run(view_of(image), scratch, random));
  };
  EXPECT_EQ(run({}, 3), pixels_of(view_of(image)));
  std::set<std::vector<uint8_t>> seen;
  for (uint64_t seed = 0; seed < 50; ++seed)
    seen.insert(run({.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1}, seed));
  EXPECT_EQ(seen.size(), 50u);
  double least = 2, most = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto pixels = run({.brightness = 0.25}, seed), from = pixels_of(view_of(image));
    double sum = 0, before = 0;
    for (size_t i = 0; i < pixels.size(); ++i) {
      sum += pixels[i];
      before += from[i];
    }
    least = std::min(least, sum / before);
    most = std::max(most, sum / before);
  }
  EXPECT_NEAR(least, 0.75, 0.02);
  EXPECT_NEAR(most, 1.25, 0.05);  // less where values reach 255
  EXPECT_THAT(error_of([] { color_jitter({.hue = 0.6}); }), HasSubstr("hue of at least 0 and at most 0.5, got 0.6"));
  EXPECT_THAT(error_of([] { color_jitter({.contrast = -1}); }), HasSubstr("got -1"));
  EXPECT_THAT(error_of([] { color_jitter({.brightness = 1e300}); }), HasSubstr("at most 1e+06, got 1e+300"));
}

/// Quantiles of 20000 draws, each with four numbers.
template <class F>
void expect_quantiles(const std::string& name, const F& draw) {
  const at::Tensor expected = augment_golden(name);
  std::vector<double> values[4];
  RandomStream random(9);
  for (int i = 0; i < 20000; ++i) {
    const std::array<double, 4> numbers = draw(random);
    for (size_t k = 0; k < 4; ++k) values[k].push_back(numbers[k]);
  }
  constexpr double quantiles[] = {0.05, 0.25, 0.5, 0.75, 0.95};
  for (size_t k = 0; k < 4; ++k) {
    std::sort(values[k].begin(), values[k].end());
    for (int64_t q = 0; q < 5; ++q) {
      const double found = values[k][static_cast<size_t>(quantiles[q] * 19999)];
      EXPECT_NEAR(found, expected.const_data_ptr<double>()[q * 4 + static_cast<int64_t>(k)], 0.025)
          << name << " " << k << " " << q;
    }
  }
}

TEST(RandomResizedCrop, DrawsAsTorchvisionDoes) {
  for (int index = 0; index < 3; ++index) {
    const std::string name = "crop." + std::to_string(index);
    const auto* c = augment_golden(name).const_data_ptr<double>();
    const auto height = static_cast<int64_t>(c[0]), width = static_cast<int64_t>(c[1]);
    const std::pair scale{c[2], c[3]}, ratio{c[4], c[5]};
    expect_quantiles(name + ".quantiles", [&](RandomStream& random) {
      const io::ImageRegion r = draw_resized_crop(height, width, scale, ratio, random);
      const auto h = static_cast<double>(r.height), w = static_cast<double>(r.width);
      return std::array{h * w / static_cast<double>(height * width), std::log(w / h),
                        static_cast<double>(r.y) / static_cast<double>(std::max<int64_t>(1, height - r.height)),
                        static_cast<double>(r.x) / static_cast<double>(std::max<int64_t>(1, width - r.width))};
    });
  }
}

TEST(RandomResizedCrop, FallsBackAsTorchvisionDoes) {
  const at::Tensor rows = augment_golden("crop.fallback");
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const auto* row = rows.const_data_ptr<int64_t>() + i * 6;
    RandomStream random(0);
    const io::ImageRegion r = draw_resized_crop(row[0], row[1], {1.5, 2.0}, {3.0 / 4.0, 4.0 / 3.0}, random);
    EXPECT_EQ(r, (io::ImageRegion{row[2], row[3], row[4], row[5]})) << row[0] << " x " << row[1];
  }
}

/// The part of a white picture that `step` made black; counts what lies outside a rectangle as height 0.
io::ImageRegion black_part(const Transform& step, int64_t height, int64_t width, RandomStream& random) {
  const std::vector<uint8_t> white(static_cast<size_t>(height * width), 255);
  Scratch scratch;
  const auto pixels = pixels_of(step.run({white.data(), height, width, 1, width, 1}, scratch, random));
  io::ImageRegion r{height, width, 0, 0};
  int64_t bottom = 0, right = 0, count = 0;
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* row = pixels.data() + y * width;
    const auto black = std::count(row, row + width, 0);
    if (black == 0) continue;
    const int64_t left = std::find(row, row + width, 0) - row;
    r = {std::min(r.y, y), std::min(r.x, left), 0, 0};
    bottom = y + 1;
    right = std::max(right, left + black);
    EXPECT_TRUE(std::all_of(row + left, row + left + black, [](uint8_t pixel) { return pixel == 0; }));
    count += black;
  }
  r.height = bottom - r.y;
  r.width = right - r.x;
  EXPECT_TRUE(count == 0 || count == r.height * r.width);
  return count == 0 ? io::ImageRegion{} : r;
}

TEST(RandomErasing, DrawsAsTorchvisionDoes) {
  const Transform step = random_erasing(1.0);
  expect_quantiles("erase.quantiles", [&](RandomStream& random) {
    const io::ImageRegion r = black_part(step, 60, 80, random);
    const auto h = static_cast<double>(r.height), w = static_cast<double>(r.width);
    return std::array{h * w / 4800, std::log(h / w), static_cast<double>(r.y) / (60 - h),
                      static_cast<double>(r.x) / (80 - w)};
  });
}

TEST(RandomErasing, FillsEachChannelAndChecks) {
  const at::Tensor image = augment_golden("adjust.rgb");
  Scratch scratch;
  RandomStream random(1);
  const auto pixels = pixels_of(random_erasing(1, {0.5, 0.5}, {1, 1}, {1, 2, 3}).run(view_of(image), scratch, random));
  const auto middle = (19 / 2 * 23 + 23 / 2) * 3;
  EXPECT_EQ(std::vector<uint8_t>(pixels.begin() + middle, pixels.begin() + middle + 3),
            (std::vector<uint8_t>{1, 2, 3}));
  EXPECT_EQ(pixels_of(random_erasing(0).run(view_of(image), scratch, random)), pixels_of(view_of(image)));
  EXPECT_THAT(error_of([&] {
                random_erasing(1, {0.5, 0.5}, {1, 1}, {1, 2}).run(view_of(image), scratch, random);
              }),
              HasSubstr("expected one value or 3, one for each channel, got 2"));
  EXPECT_THAT(error_of([] { random_erasing(2); }), HasSubstr("probability in [0, 1], got 2"));
  EXPECT_THAT(error_of([] { random_erasing(1, {0.2, 1.1}); }), HasSubstr("expected scale"));
}

TEST(Cutout, FillsASquareAroundAnyPixel) {
  const Transform step = cutout(4);
  std::set<std::pair<int64_t, int64_t>> places;
  RandomStream random(4);
  for (int i = 0; i < 400; ++i) {
    const io::ImageRegion r = black_part(step, 6, 7, random);
    EXPECT_TRUE(r.height >= 2 && r.height <= 4 && r.width >= 2 && r.width <= 4);
    places.insert({r.y + r.height, r.x + r.width});
  }
  EXPECT_EQ(places.size(), 5u * 6);  // of the lower right corner: the last two columns and rows look the same
  EXPECT_THAT(error_of([] { cutout(0); }), HasSubstr("side from 1"));
}

TEST(Grayscale, HasItsShare) {
  const at::Tensor image = augment_golden("adjust.rgb");
  int gray = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Scratch scratch;
    RandomStream random(seed);
    gray += pixels_of(random_grayscale(0.3).run(view_of(image), scratch, random)) != pixels_of(view_of(image));
  }
  EXPECT_NEAR(gray, 300, 60);
}

}  // namespace
}  // namespace bellows::data::testing
