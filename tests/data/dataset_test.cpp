#include "bellows/data/dataset.h"

#include <ATen/ops/equal.h>

#include <set>

#include "bellows/core/file.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Digits, HoldTheWholeSetOnce) {
  std::set<std::string> keys;
  int64_t samples = 0;
  for (const char* split : {"train", "test"}) {
    const Dataset set = open(kDigits, {.split = split});
    EXPECT_EQ(set.size(), std::string(split) == "train" ? 1438 : 359);
    EXPECT_EQ(set.info().classes.size(), 10u);
    EXPECT_THAT(set.info().splits, ElementsAre("test", "train"));
    for (int64_t i = 0; i < set.size(); ++i) keys.insert(std::string(set.source()->read(i).key));
    samples += set.size();
  }
  EXPECT_EQ(samples, 1797);
  EXPECT_EQ(keys.size(), 1797u);
  EXPECT_EQ(*keys.begin(), "0000");
  EXPECT_EQ(*keys.rbegin(), "1796");
}

TEST(Digits, AreSplitAlikeInEachClassAndNormalizeToZeroAndOne) {
  int64_t counts[2][10] = {};
  for (int64_t part = 0; part < 2; ++part) {
    Loader loader = open(kDigits, {.split = part ? "test" : "train"}).normalize().batch(2000).loader();
    const Batch batch = *loader.next();
    EXPECT_EQ(batch["image"].sizes(), c10::IntArrayRef({batch.size(), 1, 8, 8}));
    for (int64_t i = 0; i < batch.size(); ++i) ++counts[part][batch["label"].const_data_ptr<int64_t>()[i]];
    if (part == 0) {
      EXPECT_NEAR(batch["image"].mean().item<double>(), 0, 1e-3);
      EXPECT_NEAR(batch["image"].std().item<double>(), 1, 1e-3);
    }
  }
  for (int digit = 0; digit < 10; ++digit) {
    EXPECT_NEAR(static_cast<double>(counts[1][digit]) / static_cast<double>(counts[0][digit] + counts[1][digit]), 0.2,
                0.003);
  }
}

TEST(Open, TakesFoldersShardsPatternsAndLists) {
  EXPECT_EQ(open(kDigits + "/test-000.tar").size(), 359);
  EXPECT_EQ(open(kDigits + "/train-{000..003}.tar").size(), 1438);
  EXPECT_EQ(open(kDigits + "/*.tar").size(), 1797);
  EXPECT_EQ(open_shards({kDigits + "/train-000.tar", kDigits + "/test-000.tar"}).size(), 360 + 359);
}

TEST(Open, FindsSplitsByTheNamesOfShards) {
  TemporaryFolder folder;
  write_shard(folder / "train-0.tar", {{"a.cls", "0"}});
  EXPECT_EQ(open(folder / "").info().split, "train");
  write_shard(folder / "train-1.tar", {{"a.cls", "0"}});
  write_shard(folder / "val-0.tar", {{"a.cls", "0"}});
  EXPECT_EQ(open(folder / "", {.split = "train"}).size(), 2);
  EXPECT_EQ(open(folder / "", {.split = "val"}).size(), 1);
}

TEST(Open, ExplainsWhatIsWrong) {
  EXPECT_THAT(error_of([] { open(kDigits); }),
              HasSubstr("has several splits: test, train. Choose one: open(url, {.split = \"train\"})"));
  EXPECT_THAT(error_of([] { open(kDigits, {.split = "tran"}); }), HasSubstr("Did you mean \"train\"?"));
  EXPECT_THAT(error_of([] { open(kDigits + "/test-000.tar", {.split = "test"}); }),
              HasSubstr("Name the shards of the split"));
  EXPECT_THAT(error_of([] { open("/nowhere/at/all"); }), HasSubstr("/nowhere/at/all"));
  EXPECT_THAT(error_of([] { open(""); }), HasSubstr("empty name"));
  EXPECT_THAT(error_of([] { open("ftp://host/a.tar"); }), HasSubstr("no local path"));
  TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { open(folder / ""); }), HasSubstr("found no shards"));
  write_text_file(folder / "dataset.json", "{\"classes\": 3}");
  EXPECT_THAT(error_of([&] { open(folder / ""); }), HasSubstr("dataset.json is not a data set's description"));
}

TEST(Dataset, IsAValueWhosePartsCanBeShared) {
  const Dataset base = open(kDigits, {.split = "train"}).batch(16);
  const Dataset shuffled = base.shuffle(1).flip();
  EXPECT_FALSE(base.loader_options().shuffle);
  EXPECT_TRUE(base.pipeline().transforms.empty());
  EXPECT_TRUE(shuffled.loader_options().shuffle);
  EXPECT_EQ(shuffled.loader_options().batch_size, 16);
  EXPECT_FALSE(shuffled.sequential().loader_options().shuffle);
  EXPECT_EQ(base.pipeline().decode, "gray");
  EXPECT_EQ(base.pipeline().num_classes, 10);
}

TEST(Dataset, RunsStepsInTheOrderOfTheCalls) {
  const Dataset set = open(kDigits, {.split = "test"}).batch(4);
  Loader a = set.resize(16, 16).center_crop(4, 4).loader(), b = set.center_crop(4, 4).resize(16, 16).loader();
  EXPECT_EQ((*a.next())["image"].size(2), 4);
  EXPECT_EQ((*b.next())["image"].size(2), 16);
}

TEST(Dataset, TakesStepsOfTheUser) {
  static uint8_t black[64] = {};
  const Transform blacken{[](const ImageView& image, Scratch&, RandomStream&) {
                            return ImageView{black, image.height, image.width, 1, 8, 1};
                          },
                          true};
  Loader loader = open(kDigits, {.split = "test"}).transform(blacken).batch(4).loader();
  EXPECT_EQ((*loader.next())["image"].abs().sum().item<float>(), 0);
}

TEST(Dataset, RefusesWhatItCannotDo) {
  const Dataset set = open_shards({kDigits + "/test-000.tar"});
  EXPECT_THAT(error_of([&] { set.normalize(); }), HasSubstr("does not say its mean and std"));
  EXPECT_THAT(error_of([&] { set.decode("bgr"); }), HasSubstr("got \"bgr\""));
  EXPECT_THAT(error_of([&] { set.resize(0, 4); }), HasSubstr("positive height and width"));
  EXPECT_THAT(error_of([&] { set.transform({}); }), HasSubstr("empty function"));
  EXPECT_THAT(error_of([&] { set.flip(1.5); }), HasSubstr("probability"));
}

TEST(Batch, MovesToADevice) {
  Loader loader = open(kDigits, {.split = "test"}).batch(4).loader();
  const Batch batch = *loader.next();
  const Batch same = batch.to(c10::kCPU);
  EXPECT_EQ(same["image"].const_data_ptr(), batch["image"].const_data_ptr());
  const Batch meta = batch.to(c10::kMeta);
  EXPECT_EQ(meta["image"].device(), c10::kMeta);
  EXPECT_EQ(meta.ids(), batch.ids());
}

}  // namespace
}  // namespace bellows::data::testing
