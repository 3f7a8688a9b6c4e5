#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "bellows/data/dataset.h"
#include "tests/data/images/pictures.h"

namespace bellows::data::testing {
namespace {

/// A photograph for the purpose: gradients, edges, fine texture; a little noise.
at::Tensor textured(int64_t height, int64_t width) {
  at::Tensor image = at::empty({height, width, 3}, at::kByte);
  RandomStream random(5);
  auto* to = image.data_ptr<uint8_t>();
  for (int64_t i = 0; i < image.numel(); ++i) {
    const int64_t column = i / 3 % width, row = i / 3 / width;
    const auto x = static_cast<double>(column), y = static_cast<double>(row);
    const double shade = 90 + 0.1 * x + 40 * std::sin(0.03 * x + 0.5 * static_cast<double>(i % 3)) * std::cos(0.04 * y);
    const double edge = std::fmod(x + 2 * y, 90) < 40 ? 30 : 0;
    to[i] = static_cast<uint8_t>(std::clamp(shade + edge + 6 * std::sin(0.9 * x) + 8 * random.uniform(), 0.0, 255.0));
  }
  return image;
}

struct Difference {
  double mean = 0, psnr = 0;
};

Difference difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor d = a.to(at::kDouble).sub(b.to(at::kDouble));
  return {d.abs().mean().item<double>(), 10 * std::log10(255.0 * 255.0 / d.square().mean().item<double>())};
}

Difference fast_against_exact(const Dataset& set) {
  Loader exact = set.dtype(at::kByte).loader(), fast = set.dtype(at::kByte).fast_decode().loader();
  return difference((*exact.next())["image"], (*fast.next())["image"]);
}

Dataset jpegs(const TemporaryFolder& folder, int64_t height, int64_t width) {
  const io::Bytes jpeg = io::encode_jpeg(textured(height, width), 90);
  std::vector<Member> members;
  members.reserve(16);
  for (int i = 0; i < 16; ++i)
    members.push_back({std::to_string(i) + ".jpg", {reinterpret_cast<const char*>(jpeg.data()), jpeg.size()}});
  write_shard(folder / "photos.tar", members);
  return open(folder / "photos.tar").batch(16);
}

// What fast_decode's documentation promises: mean absolute difference of 8-bit values, and PSNR, after scaling.
TEST(FastDecode, IsCloseToExactDecoding) {
  TemporaryFolder folder;
  const Dataset set = jpegs(folder, 375, 500);
  const Difference crop = fast_against_exact(set.random_resized_crop(224, 224));
  RecordProperty("crop_mean", std::to_string(crop.mean));
  RecordProperty("crop_psnr", std::to_string(crop.psnr));
  EXPECT_LT(crop.mean, 1.5);
  EXPECT_GT(crop.psnr, 38);
  for (const int64_t side : {180, 90, 40}) {  // decoded at 1/2, 1/4 and 1/8
    const Difference whole = fast_against_exact(set.resize(side, side));
    RecordProperty("whole_mean_" + std::to_string(side), std::to_string(whole.mean));
    RecordProperty("whole_psnr_" + std::to_string(side), std::to_string(whole.psnr));
    EXPECT_LT(whole.mean, 2.5) << side;
    EXPECT_GT(whole.psnr, 35) << side;
  }
}

TEST(FastDecode, OfAPngIsExact) {
  const Dataset set = open(kDigits, {.split = "test"}).batch(32).resize(3, 3);
  Loader exact = set.loader(), fast = set.fast_decode().loader();
  EXPECT_EQ(fingerprint(*exact.next()), fingerprint(*fast.next()));
}

TEST(FastDecode, IsTheSameForAnyNumberOfThreads) {
  TemporaryFolder folder;
  const Dataset set = jpegs(folder, 200, 300).random_resized_crop(50, 50).flip().fast_decode().batch(4);
  Loader one = set.threads(0).loader();
  const std::vector<std::string> expected = fingerprints(one, 1);
  for (int i = 0; i < 10; ++i) {  // a decoder may hand out what was decoded before it in its thread: chance
    Loader three = set.threads(3).loader();
    ASSERT_TRUE(fingerprints(three, 1) == expected) << i;
  }
}

}  // namespace
}  // namespace bellows::data::testing
