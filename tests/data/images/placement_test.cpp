#include "bellows/data/images/placement.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "tests/data/images/pictures.h"

namespace bellows::data::testing {
namespace {

using ::testing::HasSubstr;

/// Smooth shapes and some noise, [H, W, C].
at::Tensor scene(int64_t height, int64_t width, int64_t channels = 3) {
  at::Tensor image = at::empty({height, width, channels}, at::kByte);
  RandomStream random(static_cast<uint64_t>(height * 1000 + width));
  auto* to = image.data_ptr<uint8_t>();
  for (int64_t i = 0; i < image.numel(); ++i) {
    const int64_t column = i / channels % width, row = i / channels / width;
    const auto x = static_cast<double>(column), y = static_cast<double>(row);
    to[i] = static_cast<uint8_t>(110 + 80 * std::sin(0.1 * x) * std::cos(0.06 * y) + 30 * random.uniform());
  }
  return image;
}

/// One step after the other, each with a copy of what the one before made.
std::vector<uint8_t> stepwise(const at::Tensor& image, const std::vector<Transform>& steps, uint64_t seed) {
  std::vector<uint8_t> pixels = pixels_of(view_of(image));
  ImageView view = view_of(image);
  for (size_t i = 0; i < steps.size(); ++i) {
    Scratch scratch;
    RandomStream random(mix_seed(seed, i));
    const ImageView next = steps[i].run(view, scratch, random);
    pixels = pixels_of(next);
    view = {pixels.data(), next.height, next.width, next.channels, next.width * next.channels, next.channels};
  }
  return pixels;
}

/// A source with one encoded picture under many ids.
class OnePicture final : public Source {
 public:
  using Source::read;
  OnePicture(io::Bytes bytes, int64_t size) : bytes_(std::move(bytes)), size_(size) {}
  int64_t size() const override { return size_; }
  void read(int64_t index, Sample& sample) const override {
    sample.clear();
    sample.id = index;
    Field& field = sample.fields.emplace_back();
    field.name = "jpg";
    field.bytes = bytes_;
  }
  std::string describe() const override { return "one picture"; }

 private:
  io::Bytes bytes_;
  int64_t size_;
};

const std::vector<std::vector<Transform>>& chains() {
  static const std::vector<std::vector<Transform>> all = {
      {random_resized_crop(32, 24), random_flip()},
      {random_flip(1), random_resized_crop(16, 16)},
      {random_crop(40, 50), random_flip()},
      {random_flip(1), random_crop(40, 50), center_crop(20, 20)},
      {center_crop(60, 60), random_flip(1), random_crop(13, 17)},
      {resize_shorter(40), center_crop(32, 32)},
      {resize_shorter(40), random_crop(16, 32), random_flip(1), random_crop(7, 9)},
      {resize(20, 90), center_crop(17, 31), resize(17, 31)},
      {resize(20, 90), center_crop(17, 31), resize(40, 8)},
      {center_crop(70, 50), resize(35, 50), random_crop(20, 20)},
      {random_crop(90, 90, 4), resize(30, 30)},
      {resize(30, 131), random_flip(1)},
      {resize(97, 30), random_flip(1), center_crop(30, 20)},
  };
  return all;
}

TEST(Placement, EqualsTheStepsOneAfterTheOther) {
  const at::Tensor image = scene(97, 131);
  const io::Bytes jpeg = io::encode_jpeg(image, 90);
  const at::Tensor decoded = io::decode_image(jpeg);
  constexpr int64_t count = 12;
  for (size_t chain = 0; chain < chains().size(); ++chain) {
    Dataset set(std::make_shared<OnePicture>(jpeg, count));
    Dataset arrays(from_tensors({{"image", decoded.unsqueeze(0).repeat({count, 1, 1, 1})}}));
    for (const Transform& step : chains()[chain]) {
      set = set.transform(step);
      arrays = arrays.transform(step);
    }
    for (const Dataset& each : {set, set.cache(1 << 20), arrays}) {
      Loader loader = each.dtype(at::kByte).channels_last().batch(count).threads(0).loader();
      for (int64_t epoch = 0; epoch < 2; ++epoch) {
        loader.start(epoch);
        const Batch batch = *loader.next();
        for (int64_t i = 0; i < count; ++i) {
          const uint64_t seed = mix_seed(0, static_cast<uint64_t>(epoch), static_cast<uint64_t>(i));
          const auto expected = stepwise(decoded, chains()[chain], seed);
          const at::Tensor row = batch["image"].select(0, i);
          const auto* from = row.const_data_ptr<uint8_t>();
          ASSERT_EQ(std::vector<uint8_t>(from, from + row.numel()), expected) << "chain " << chain << ", sample " << i;
        }
      }
    }
  }
}

TEST(Placement, NeedsNoMoreThanItLooksAt) {
  Placement placement = Placement::whole(1000, 2000);
  ASSERT_TRUE(placement.scale(100, 200));
  EXPECT_EQ(placement.shrink(), 8);
  placement.crop({10, 20, 30, 40});
  const io::ImageRegion needed = placement.needed();
  EXPECT_GE(needed.y, 85);
  EXPECT_LE(needed.y, 95);
  EXPECT_LE(needed.height, 330);
  EXPECT_LE(needed.width, 430);
  Placement whole = Placement::whole(10, 20);
  EXPECT_EQ(whole.needed(), (io::ImageRegion{0, 0, 10, 20}));
  EXPECT_EQ(whole.shrink(), 1);
}

TEST(RandomResizedCrop, RefusesWhatMakesNoSense) {
  EXPECT_THAT(error_of([] { random_resized_crop(8, 8, {0.0, 1.0}); }), HasSubstr("expected scale with 0 < least"));
  EXPECT_THAT(error_of([] { random_resized_crop(8, 8, {0.5, 0.4}); }), HasSubstr("got 0.5 and 0.4"));
  EXPECT_THAT(error_of([] { random_resized_crop(8, 8, {0.5, 1.0}, {-1, 1}); }), HasSubstr("expected ratio"));
  EXPECT_THAT(error_of([] { random_resized_crop(8, 8, {0.5, NAN}); }), HasSubstr("expected scale"));
  EXPECT_THAT(error_of([] { random_resized_crop(0, 8); }), HasSubstr("random_resized_crop: expected a height"));
}

}  // namespace
}  // namespace bellows::data::testing
