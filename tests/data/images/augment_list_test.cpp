#include "bellows/data/images/augment_list.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>

#include "bellows/io/tensors/safetensors.h"
#include "tests/data/images/pictures.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const io::SafetensorsFile& list_golden() {
  static const io::SafetensorsFile file(kGoldens + "augment_list.safetensors");
  return file;
}

std::string list_error(const std::string& text) {
  return error_of([&] { const AugmentList list(text); });
}

/// What the list makes of one picture.
std::vector<uint8_t> augmented_pixels(const std::string& text, const at::Tensor& picture, uint64_t seed) {
  const NamedTensors tensors{{"image", picture.unsqueeze(0)}, {"label", at::zeros({1}, at::kLong)}};
  const Dataset dataset = AugmentList(text).apply(Dataset(from_tensors(tensors)), {});
  Scratch scratch;
  ImageView view = view_of(picture);
  uint64_t step = 0;
  for (const Transform& transform : dataset.pipeline().transforms) {
    RandomStream random(mix_seed(seed, step++));
    view = transform.run(view, scratch, random);
  }
  return pixels_of(view);
}

/// Quantiles of 20000 draws of torchvision. Callers pass a tolerance of 0.025 times the range of the values, which is
/// four standard errors of the widest quantile.
void expect_list_quantiles(const at::Tensor& expected, size_t column, std::vector<double> values, double tolerance) {
  constexpr double quantiles[] = {0.05, 0.25, 0.5, 0.75, 0.95};
  std::ranges::sort(values);
  for (int64_t q = 0; q < 5; ++q) {
    const at::Tensor row = expected[q];
    const double value = (row.dim() == 0 ? row : row[static_cast<int64_t>(column)]).item<double>();
    EXPECT_NEAR(values[static_cast<size_t>(quantiles[q] * static_cast<double>(values.size() - 1))], value, tolerance)
        << column << " " << q;
  }
}

TEST(AugmentList, FixedParametersGiveTorchvisionsPixels) {
  int compared = 0;
  for (const char* name : {"rgb", "gray"}) {
    const at::Tensor picture = list_golden().tensor(name);
    for (const auto& [key, text] : list_golden().metadata()) {
      if (!key.starts_with("list.")) continue;
      const at::Tensor expected = list_golden().tensor(std::string(name) + key.substr(4));
      EXPECT_EQ(augmented_pixels(text, picture, 7), pixels_of(view_of(expected))) << name << ": " << text;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 36);
}

TEST(AugmentList, ColorJitterDrawsAsTorchvisionDoes) {
  const ColorJitterRanges ranges{{0.6, 1.4}, {0.5, 2.0}, {0.0, 3.0}, {-0.3, 0.3}};
  RandomStream random(5);
  std::vector<double> values[4];
  std::map<std::array<int, 4>, int> orders;
  for (int i = 0; i < 20000; ++i) {
    const ColorJitterDraw drawn = draw_color_jitter(ranges, random);
    values[0].push_back(drawn.brightness);
    values[1].push_back(drawn.contrast);
    values[2].push_back(drawn.saturation);
    values[3].push_back(drawn.hue);
    ++orders[drawn.order];
  }
  const at::Tensor expected = list_golden().tensor("jitter.quantiles");
  const double widths[] = {0.8, 1.5, 3.0, 0.6};
  for (size_t k = 0; k < 4; ++k) expect_list_quantiles(expected, k, values[k], 0.025 * widths[k]);
  EXPECT_EQ(orders.size(), 24U);
  for (const auto& [order, count] : orders) EXPECT_NEAR(count, 20000 / 24, 150) << "five standard deviations";
}

TEST(AugmentList, MixUpDrawsAsTorchvisionDoes) {
  RandomStream random(6);
  std::vector<double> shares;
  for (int i = 0; i < 20000; ++i) shares.push_back(draw_beta(0.3, random));
  expect_list_quantiles(list_golden().tensor("mixup.quantiles"), 0, shares, 0.025);
}

TEST(AugmentList, HasTorchvisionsDefaultsAndForms) {
  for (const char* text :
       {"RandomResizedCrop", "RandomResizedCrop()", " v2.RandomResizedCrop ( scale = [0.08, 1.0], ) ",
        "torchvision.transforms.v2.RandomResizedCrop(scale=(.08, 1), ratio=(0.75, 1.3333333333333333))"}) {
    const at::Tensor picture = list_golden().tensor("rgb");
    const NamedTensors tensors{{"image", picture.unsqueeze(0)}, {"label", at::zeros({1}, at::kLong)}};
    const Dataset own = Dataset(from_tensors(tensors)).threads(0);
    Loader list = AugmentList(text).apply(own, {.height = 20, .width = 30}).loader();
    Loader plain = own.random_resized_crop(20, 30).loader();
    EXPECT_EQ(fingerprints(list, 0), fingerprints(plain, 0)) << text;
  }
  EXPECT_TRUE(AugmentList("RandomResizedCrop, MixUp").mixes());
  EXPECT_TRUE(AugmentList("RandomHorizontalFlip, CenterCrop(3)").sets_size());
  EXPECT_FALSE(AugmentList("RandomHorizontalFlip, CutMix").sets_size());
  EXPECT_FALSE(AugmentList("RandomHorizontalFlip").mixes());
}

TEST(AugmentList, SamplesDependOnSeedAndEpochAlone) {
  const NamedTensors tensors{{"image", at::arange(12 * 16 * 16 * 3).remainder(251).to(at::kByte).view({12, 16, 16, 3})},
                             {"label", at::arange(12).remainder(3)}};
  const AugmentList list(
      "RandomResizedCrop(8, scale=(0.3, 1)), RandomHorizontalFlip, RandomVerticalFlip, ColorJitter(0.4, 0.4, 0.4, "
      "0.1), "
      "RandAugment, RandomErasing(p=0.25), MixUp(alpha=0.4), CutMix");
  const Dataset plain = Dataset(from_tensors(tensors)).shuffle(4).batch(5);
  const Dataset augmented = list.apply(plain, {.mean = {0.5}, .num_classes = 3});
  Loader one = augmented.threads(0).loader(), three = augmented.threads(3).loader();
  Loader other = list.apply(plain.shuffle(5), {.mean = {0.5}, .num_classes = 3}).loader();
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto all = fingerprints(one, epoch);
    EXPECT_EQ(all, fingerprints(three, epoch));
    EXPECT_EQ(fingerprints(three, epoch, 1), std::vector<std::string>(all.begin() + 1, all.end())) << "after a resume";
    EXPECT_NE(all, fingerprints(other, epoch));
  }
  EXPECT_NE(fingerprints(one, 0), fingerprints(one, 1));
  one.start(0);
  const Batch batch = *one.next();
  EXPECT_EQ(batch["image"].sizes(), (std::vector<int64_t>{5, 3, 8, 8}));
  EXPECT_LT(batch["label"].sum(1).sub(1).abs().max().item<float>(), 1e-6f);
}

TEST(AugmentList, UnknownStepsAndParametersAreNamed) {
  EXPECT_THAT(list_error("RandomFlop"), AllOf(HasSubstr("unknown step \"RandomFlop\""), HasSubstr("RandAugment, "),
                                              HasSubstr("none, crop, crop_flip")));
  EXPECT_THAT(list_error("crop_flop"), HasSubstr("unknown step"));
  EXPECT_THAT(list_error("mixup"), HasSubstr("Did you mean \"MixUp\"?"));
  EXPECT_THAT(list_error("rand_augment(2)"), HasSubstr("Did you mean \"RandAugment\"?"));
  EXPECT_THAT(list_error("RandomResizedCrop(8, scle=(0.1, 1))"),
              AllOf(HasSubstr("RandomResizedCrop: unknown parameter \"scle\". Parameters: size, scale, ratio."),
                    HasSubstr("Did you mean \"scale\"?")));
  EXPECT_THAT(list_error("RandomHorizontalFlip(p=1, p=0)"), HasSubstr("\"p\" is given twice"));
  EXPECT_THAT(list_error("RandomHorizontalFlip(0.5, 0.5)"), HasSubstr("at most 1 values without a name"));
  EXPECT_THAT(list_error("ColorJitter(hue=0.1, 0.2)"), HasSubstr("before those with a name"));
  EXPECT_THAT(list_error("CenterCrop"), HasSubstr("CenterCrop: the parameter size is missing"));
}

TEST(AugmentList, BadTextsAreRefusedAtTheirPlace) {
  EXPECT_THAT(list_error(""), HasSubstr("expected a name at character 1, found the end"));
  EXPECT_THAT(list_error("MixUp,"), HasSubstr("expected a name at character 7, found the end"));
  EXPECT_THAT(list_error("MixUp CutMix"), HasSubstr("expected \",\" or the end of the list at character 7"));
  EXPECT_THAT(list_error("MixUp(alpha=)"), HasSubstr("expected a number at character 13, found \")\""));
  EXPECT_THAT(list_error("MixUp(alpha 1)"), HasSubstr("expected \"=\" at character 13"));
  EXPECT_THAT(list_error("MixUp(1"), HasSubstr("expected \",\" at character 8, found the end"));
  EXPECT_THAT(list_error("Resize((4, 5)"), HasSubstr("expected \",\" at character 14"));
  EXPECT_THAT(list_error("Resize((4, 5]"), HasSubstr("expected \")\" at character 13"));
  for (const char* number : {"1x", "nan", "inf", "0x10", "1e999", "--1", "None", "'a'"})
    EXPECT_THAT(list_error(std::string("MixUp(alpha=") + number + ")"), HasSubstr("expected ")) << number;
}

TEST(AugmentList, ValuesOutOfRangeAreRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"RandomHorizontalFlip(p=2)", "RandomHorizontalFlip: random_flip: expected a probability in [0, 1], got 2"},
      {"RandomVerticalFlip(p=-1)", "expected a probability in [0, 1], got -1"},
      {"RandomResizedCrop(0)", "size: expected whole numbers from 1 to 65536, got 0"},
      {"RandomResizedCrop(2.5)", "got 2.5"},
      {"RandomResizedCrop((1, 2, 3))", "expected one or two numbers, got (1, 2, 3)"},
      {"RandomResizedCrop(8, scale=1)", "scale: expected two numbers, such as (0.5, 1), got 1"},
      {"RandomResizedCrop(8, scale=(1, 0.5))", "expected scale with 0 < least <= most, got 1 and 0.5"},
      {"RandomCrop(8, padding=(1, 2))", "padding: expected one number, got (1, 2)"},
      {"RandomCrop(8, padding=1.5)", "padding: expected a whole number, got 1.5"},
      {"RandomCrop(8, padding=-1)", "expected a padding from 0"},
      {"RandomCrop(8, fill=256)", "fill: expected a number from 0 to 255, got 256"},
      {"ColorJitter(brightness=-1)", "brightness: expected a number from 0 to 1e6, got -1"},
      {"ColorJitter(hue=0.6)", "hue: expected a number from 0 to 0.5, got 0.6"},
      {"ColorJitter(hue=(-0.6, 0))", "expected a range of hue with -0.5"},
      {"ColorJitter(contrast=(2, 1))", "expected a range of contrast"},
      {"RandAugment(num_ops=-1)", "expected 0 to 100 ops, got -1"},
      {"RandAugment(magnitude=31)", "expected a magnitude in [0, 31), got 31"},
      {"RandAugment(num_magnitude_bins=10)", "num_magnitude_bins: expected 31, the only supported number, got 10"},
      {"RandomErasing(p=7)", "expected a probability"},
      {"RandomErasing(value=1)", "value: expected 0, the only supported value, got 1"},
      {"MixUp(alpha=0)", "MixUp: expected an alpha above 0 and at most 1e6, got 0"},
      {"MixUp, MixUp", "MixUp is listed twice"},
      {"CutMix, RandomHorizontalFlip", "must come before MixUp and CutMix"}};
  for (const auto& [text, words] : cases) EXPECT_THAT(list_error(text), HasSubstr(words)) << text;
  const Dataset dataset(from_tensors({{"image", at::zeros({2, 4, 4, 3}, at::kByte)}, {"label", at::arange(2)}}));
  EXPECT_THAT(error_of([&] { AugmentList("RandomResizedCrop").apply(dataset, {}); }),
              HasSubstr("RandomResizedCrop: the size is unknown. Set image_size"));
}

}  // namespace
}  // namespace bellows::data::testing
