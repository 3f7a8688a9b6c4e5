#include "bellows/data/images/mix_batch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include <algorithm>

#include "bellows/io/tensors/safetensors.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::HasSubstr;

at::Tensor mix_golden(const std::string& name) {
  static const NamedTensors tensors = io::load_safetensors(kGoldens + "augment.safetensors");
  for (const auto& [known, tensor] : tensors) {
    if (known == name) return tensor;
  }
  ADD_FAILURE() << "no golden " << name;
  return {};
}

TEST(Mixup, EqualsTorchvision) {
  for (const auto& [text, share] : {std::pair{"0.0", 0.0}, {"0.3", 0.3}, {"0.85", 0.85}}) {
    const std::string name = std::string("mixup.") + text;
    for (const bool last : {false, true}) {
      const at::Tensor images =
          mix_golden("mix.images").clone(last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
      mixup_(images, share);
      EXPECT_TRUE(at::equal(images, mix_golden(name + ".images"))) << name;
    }
    EXPECT_TRUE(at::equal(mix_labels(mix_golden("mix.labels"), share, 4), mix_golden(name + ".labels"))) << name;
  }
}

TEST(Cutmix, EqualsTorchvision) {
  for (int index = 0; index < 3; ++index) {
    const std::string name = "cutmix." + std::to_string(index);
    const auto* box = mix_golden(name + ".box").const_data_ptr<int64_t>();
    const io::ImageRegion part{box[1], box[0], box[3] - box[1], box[2] - box[0]};
    const at::Tensor images = mix_golden("mix.images").clone();
    cutmix_(images, part);
    EXPECT_TRUE(at::equal(images, mix_golden(name + ".images"))) << name;
    const double share = 1.0 - static_cast<double>(part.height * part.width) / 42;
    EXPECT_TRUE(at::equal(mix_labels(mix_golden("mix.labels"), share, 4), mix_golden(name + ".labels"))) << name;
  }
}

TEST(MixBatch, BetaHasItsMoments) {
  for (const double alpha : {0.05, 0.2, 1.0, 3.0}) {
    RandomStream random(1);
    double sum = 0, squares = 0;
    constexpr int draws = 20000;
    for (int i = 0; i < draws; ++i) {
      const double x = draw_beta(alpha, random);
      ASSERT_TRUE(x >= 0 && x <= 1);
      sum += x;
      squares += (x - 0.5) * (x - 0.5);
    }
    EXPECT_NEAR(sum / draws, 0.5, 0.02) << alpha;
    EXPECT_NEAR(squares / draws, 1 / (4 * (2 * alpha + 1)), 0.01) << alpha;
  }
}

TEST(MixBatch, OfALoaderDependsOnSeedEpochAndBatchAlone) {
  const NamedTensors tensors{{"image", at::arange(12 * 8 * 8 * 3).remainder(251).to(at::kByte).view({12, 8, 8, 3})},
                             {"label", at::arange(12).remainder(3)}};
  const Dataset plain = Dataset(from_tensors(tensors)).shuffle(4).batch(5);
  const Dataset mixed = plain.mix({.mixup_alpha = 0.4, .cutmix_alpha = 1, .num_classes = 3});
  Loader one = mixed.threads(0).loader(), two = mixed.threads(2).loader(), before = plain.loader();
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto all = fingerprints(one, epoch);
    EXPECT_EQ(all, fingerprints(two, epoch));
    EXPECT_NE(all, fingerprints(before, epoch));
    EXPECT_EQ(fingerprints(one, epoch, 1), std::vector<std::string>(all.begin() + 1, all.end()));
  }
  one.start(0);
  const Batch batch = *one.next();
  EXPECT_EQ(batch["label"].sizes(), (std::vector<int64_t>{5, 3}));
  EXPECT_TRUE(batch["label"].sum(1).sub(1).abs().max().item<float>() < 1e-6f);
  EXPECT_EQ(fingerprints(before, 0), [&] {
    Loader off = plain.mix({}).loader();
    return fingerprints(off, 0);
  }());
}

TEST(MixBatch, WithoutClassesTellsBothLabelsAndTheShare) {
  Batch batch(
      {{"image", at::ones({3, 1, 4, 4}).mul(at::arange(3).view({3, 1, 1, 1}))}, {"label", at::arange(3).add(7)}},
      {0, 1, 2});
  const Batch mixed = mix_batch(std::move(batch), {.mixup_alpha = 1}, 3);
  EXPECT_TRUE(at::equal(mixed["label"], at::arange(3).add(7)));
  EXPECT_EQ(mixed["label_other"][0].item<int64_t>(), 9);
  EXPECT_EQ(mixed["label_other"][2].item<int64_t>(), 8);
  const float share = mixed["label_share"][0].item<float>();
  EXPECT_NEAR(mixed["image"][1][0][0][0].item<float>(), share, 1e-6);
  EXPECT_NEAR(mixed["image"][0][0][3][3].item<float>(), 2 * (1 - share), 1e-6);
}

TEST(MixBatch, ChecksWhatItGets) {
  const auto batch = [](at::Tensor image, at::Tensor label) {
    return Batch({{"image", std::move(image)}, {"label", std::move(label)}}, {0, 1});
  };
  const at::Tensor floats = at::ones({2, 3, 4, 4}), labels = at::arange(2);
  EXPECT_THAT(error_of([&] { mix_batch(batch(floats, labels), {.mixup_alpha = -1}, 0); }), HasSubstr("got -1 and 0"));
  EXPECT_THAT(error_of([&] { mix_batch(batch(floats.to(at::kByte), labels), {.mixup_alpha = 1}, 0); }),
              HasSubstr("mixup needs floating-point images, got Byte"));
  EXPECT_THAT(error_of([&] { mix_batch(batch(floats, floats), {.cutmix_alpha = 1}, 0); }),
              HasSubstr("\"label\" int64 [N]"));
  EXPECT_THAT(error_of([&] { mix_batch(batch(floats, labels.add(4)), {.cutmix_alpha = 1, .num_classes = 5}, 0); }),
              HasSubstr("expected a label in [0, 5), found 5 in row 1"));
  EXPECT_THAT(error_of([&] { mix_batch(batch(floats, labels), {.cutmix_alpha = 1, .num_classes = -1}, 0); }),
              HasSubstr("num_classes of at least 0, got -1"));
  EXPECT_NO_THROW(mix_batch(batch(floats.to(at::kByte), labels), {.cutmix_alpha = 1}, 0));
}

}  // namespace
}  // namespace bellows::data::testing
