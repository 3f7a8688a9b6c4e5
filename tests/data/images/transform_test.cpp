#include "bellows/data/images/transform.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <set>

#include "bellows/io/tensors/safetensors.h"
#include "tests/data/images/pictures.h"

namespace bellows::data::testing {
namespace {

using ::testing::HasSubstr;

const NamedTensors& goldens() {
  static const NamedTensors tensors = io::load_safetensors(kGoldens + "transforms.safetensors");
  return tensors;
}

at::Tensor golden(const std::string& name) {
  for (const auto& [known, tensor] : goldens()) {
    if (known == name) return tensor;
  }
  ADD_FAILURE() << "no golden " << name;
  return {};
}

std::vector<uint8_t> run(const Transform& step, const ImageView& image, uint64_t seed = 0) {
  Scratch scratch;
  RandomStream random(seed);
  return pixels_of(step.run(image, scratch, random));
}

TEST(Resize, EqualsPillowBitForBit) {
  int compared = 0;
  for (const auto& [name, image] : goldens()) {
    if (!name.starts_with("resize.") || !name.ends_with(".in")) continue;
    const std::string stem = name.substr(0, name.size() - 3);
    const at::Tensor expected = golden(stem + ".out");
    const auto ours = run(resize(expected.size(0), expected.size(1)), view_of(image));
    EXPECT_EQ(ours, pixels_of(expected)) << name;
    const auto any_order = pixels_of(golden(stem + ".any_order"));
    for (size_t i = 0; i < ours.size(); ++i) ASSERT_LE(std::abs(ours[i] - any_order[i]), 1) << name << " at " << i;
    ++compared;
  }
  EXPECT_EQ(compared, 14);
}

TEST(Resize, ReadsViewsWhoseRowsGoUpwardsOrAreOne) {
  const at::Tensor image = golden("resize.3.37x53.8x8.in");
  const ImageView plain = view_of(image);
  for (const ImageView& view :
       {ImageView{plain.at(36, 0), 37, 53, 3, -plain.row_stride, 3}, ImageView{plain.at(36, 0), 37, 53, 3, 0, 3}}) {
    const std::vector<uint8_t> copy = pixels_of(view);
    const ImageView packed{copy.data(), 37, 53, 3, plain.row_stride, 3};
    EXPECT_EQ(run(resize(8, 8), view), run(resize(8, 8), packed)) << view.row_stride;
    EXPECT_EQ(run(resize(74, 106), view), run(resize(74, 106), packed)) << view.row_stride;
  }
}

TEST(Resize, ReadsViewsThatAreMirroredOrCut) {
  const at::Tensor image = golden("resize.3.37x53.8x8.in");
  Scratch scratch;
  RandomStream random(0);
  const ImageView mirrored = random_flip(1).run(view_of(image), scratch, random);
  const ImageView part = center_crop(20, 30).run(mirrored, scratch, random);
  const std::vector<uint8_t> copy = pixels_of(part);
  const ImageView packed{copy.data(), 20, 30, 3, 90, 3};
  EXPECT_EQ(run(resize(7, 9), part), run(resize(7, 9), packed));
}

TEST(Resize, ShorterSideEqualsTorchvision) {
  for (int64_t side : {10, 40}) {
    const std::string name = c10::str("shorter.", side);
    EXPECT_EQ(run(resize_shorter(side), view_of(golden(name + ".in"))), pixels_of(golden(name + ".out")));
  }
}

TEST(Resize, RefusesSizesThatNobodyMeans) {
  constexpr int64_t huge = INT64_MAX;
  for (const auto& make : {resize, center_crop, +[](int64_t h, int64_t w) { return random_crop(h, w); }}) {
    for (auto [h, w] : {std::pair{huge, int64_t{8}}, {8, huge}, {65537, 1}, {0, 4}, {-1, 4}, {32768, 16384}}) {
      EXPECT_THAT(error_of([&] { make(h, w); }),
                  HasSubstr(c10::str("from 1 to 65536 with at most 268435456 pixels, got ", h, " x ", w)));
    }
  }
  EXPECT_THAT(error_of([] { resize_shorter(huge); }), HasSubstr("side from 1 to 65536, got 9223372036854775807"));
  EXPECT_THAT(error_of([] { random_crop(8, 8, huge); }), HasSubstr("padding from 0 to 65536, got 922"));
  const std::vector<uint8_t> pixels(30000);
  const ImageView tall{pixels.data(), 30000, 1, 1, 1, 1};
  EXPECT_THAT(error_of([&] { run(resize_shorter(10), tall); }), HasSubstr("resize_shorter: expected"));
  EXPECT_THAT(error_of([&] { run(resize(8, 60000), tall); }), HasSubstr("would have 30000 x 60000 pixels"));
}

TEST(CenterCrop, EqualsTorchvision) {
  for (auto [h, w] : {std::pair{10, 11}, {9, 6}, {12, 15}}) {
    const std::string name = c10::str("center.", h, "x", w);
    EXPECT_EQ(run(center_crop(h, w), view_of(golden(name + ".in"))), pixels_of(golden(name + ".out"))) << name;
  }
}

TEST(CenterCrop, RefusesASmallerPicture) {
  const at::Tensor image = golden("flip.in");
  EXPECT_THAT(error_of([&] { run(center_crop(6, 6), view_of(image)); }), HasSubstr("at least 6 x 6, got 5 x 7"));
}

TEST(Flip, EqualsTorchvisionAndKeepsItsShare) {
  const at::Tensor image = golden("flip.in");
  EXPECT_EQ(run(random_flip(1), view_of(image)), pixels_of(golden("flip.out")));
  EXPECT_EQ(run(random_flip(0), view_of(image)), pixels_of(image));
  int flips = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed)
    flips += run(random_flip(0.25), view_of(image), seed) != pixels_of(image);
  EXPECT_NEAR(flips, 500, 80);
}

TEST(RandomCrop, GivesEveryWindowOfThePaddedPictureAndNoOther) {
  const at::Tensor image = golden("flip.in"), padded = golden("padded.out");  // 5 x 7, 9 x 11
  const ImageView all = view_of(padded);
  std::set<std::vector<uint8_t>> windows, seen;
  for (int64_t y = 0; y + 5 <= 9; ++y) {
    for (int64_t x = 0; x + 7 <= 11; ++x)
      windows.insert(pixels_of(ImageView{all.at(y, x), 5, 7, 3, all.row_stride, 3}));
  }
  EXPECT_EQ(windows.size(), 25u);
  for (uint64_t seed = 0; seed < 400; ++seed) seen.insert(run(random_crop(5, 7, 2), view_of(image), seed));
  EXPECT_EQ(seen, windows);
}

TEST(RandomCrop, DependsOnTheStreamAlone) {
  const at::Tensor image = golden("resize.3.64x48.63x49.in");
  EXPECT_EQ(run(random_crop(32, 32), view_of(image), 5), run(random_crop(32, 32), view_of(image), 5));
  EXPECT_NE(run(random_crop(32, 32), view_of(image), 5), run(random_crop(32, 32), view_of(image), 6));
  EXPECT_THAT(error_of([&] { run(random_crop(80, 32, 4), view_of(image)); }), HasSubstr("padding 4"));
}

TEST(Normalizer, EqualsTorchvisionBitForBitInBothOrders) {
  const at::Tensor image = golden("normalize.in"), expected = golden("normalize.out");
  const Normalizer normalizer({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}, 3);
  std::vector<float> out(5 * 7 * 3);
  normalizer.run(view_of(image), out.data(), false);
  EXPECT_TRUE(at::equal(at::from_blob(out.data(), {3, 5, 7}), expected));
  normalizer.run(view_of(image), out.data(), true);
  EXPECT_TRUE(at::equal(at::from_blob(out.data(), {5, 7, 3}).permute({2, 0, 1}), expected));
}

TEST(Normalizer, RefusesWhatDoesNotFit) {
  EXPECT_THAT(error_of([] { Normalizer({0.1, 0.2}, {1.0}, 3); }), HasSubstr("one for each of 3 channels, got 2 and 1"));
  EXPECT_THAT(error_of([] { Normalizer({0.1}, {0.0}, 1); }), HasSubstr("every std to be positive"));
}

}  // namespace
}  // namespace bellows::data::testing
