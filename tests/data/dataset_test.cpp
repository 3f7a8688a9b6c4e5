#include "bellows/data/dataset.h"

#include <ATen/ops/equal.h>
#include <sys/stat.h>

#include <set>

#include "bellows/system/file.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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
              HasSubstr("has several splits: test, train. Choose one with the option `split`, or name its files."));
  EXPECT_EQ(open(kDigits, {.otherwise = "train"}).info().split, "train");
  EXPECT_EQ(open(kDigits, {.split = "test", .otherwise = "train"}).info().split, "test");
  EXPECT_THAT(error_of([] { open(kDigits, {.otherwise = "val"}); }),
              HasSubstr("several splits, but none has the name \"val\""));
  EXPECT_THAT(error_of([] { open(kDigits, {.split = "tran"}); }), HasSubstr("Did you mean \"train\"?"));
  EXPECT_THAT(error_of([] { open(kDigits + "/test-000.tar", {.split = "test"}); }),
              HasSubstr("Name the shards of the split"));
  EXPECT_THAT(error_of([] { open("/nowhere/at/all"); }), HasSubstr("/nowhere/at/all"));
  EXPECT_THAT(error_of([] { open(""); }), HasSubstr("empty name"));
  EXPECT_THAT(error_of([] { open("ftp://host/a.tar"); }), HasSubstr("not a local path"));
  TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { open(folder / ""); }), HasSubstr("contains no dataset"));
  EXPECT_THAT(error_of([] { open(std::string(5000, 'a')); }), HasSubstr("File name too long"));
}

TEST(Open, SaysWhatIsWrongInADescription) {
  TemporaryFolder folder;
  const std::string path = folder / "dataset.json";
  auto message = [&](const std::string& text) {
    write_text_file(path, text);
    const std::string result = error_of([&] { open(folder / ""); });
    EXPECT_THAT(result, ContainsRegex("open: " + path + ": (expected|invalid JSON at byte [0-9]+:) "));
    EXPECT_THAT(result, Not(HasSubstr("json.exception"))) << text;
    return result;
  };
  EXPECT_THAT(message("{\"classes\": 3}"), HasSubstr("expected \"classes\" to be a list of texts, found \"3\"."));
  EXPECT_THAT(message("{\"classes\": [\"a\", 1]}"), HasSubstr(R"(found "[\x22a\x22,1]".)"));
  EXPECT_THAT(message("{\"name\": []}"), HasSubstr("\"name\" to be a text"));
  EXPECT_THAT(message("{\"mean\": \"0.5\"}"), HasSubstr("\"mean\" to be a list of numbers"));
  EXPECT_THAT(message("{\"image_size\": [8.5, 8, 1]}"), HasSubstr("\"image_size\" to be a list of whole numbers"));
  EXPECT_THAT(message("{\"splits\": [\"train-0.tar\"]}"), HasSubstr("\"splits\" to be an object of texts"));
  EXPECT_THAT(message("{\"splits\": {\"train\": 1}}"), HasSubstr("\"splits\" to be an object of texts"));
  EXPECT_THAT(message("[1, 2]"), HasSubstr("expected a JSON object that describes a dataset, found \"[1,2]\"."));
  EXPECT_THAT(message("{\"name\": oops}"), HasSubstr("invalid JSON at byte 9: \"oops}\""));
  EXPECT_THAT(message("{\"mean\": [1e999]}"), HasSubstr("expected numbers that fit into a double, found a larger one"));
  EXPECT_THAT(message("{\"name\": "), HasSubstr("the file ends there"));
  EXPECT_THAT(message(""), HasSubstr("the file ends there"));
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_THAT(message("{\"classes\": " + deep + "}"), HasSubstr("found deeper nesting"));
}

TEST(Open, TakesNamesThatEndLikeShardsAndNoOthers) {
  TemporaryFolder folder;
  write_shard(folder / "train-0.tar", {{"a.cls", "0"}});
  for (const char* name : {"train-0.tar.bak", "train-0.tar.Xq12ab", "foo.tarball", ".tar", "x.tar.part.gz"})
    write_text_file(folder / name, "no shard");
  EXPECT_EQ(open(folder / "").size(), 1);
  std::filesystem::copy_file(std::string(BELLOWS_SOURCE_DIR) + "/tests/goldens/io/shard.tar.gz", folder / "val-0.tgz");
  EXPECT_EQ(open(folder / "", {.split = "val"}).size(), 1);
}

TEST(Open, TakesTheNamesOfFoldersLiterally) {
  for (const char* name : {"d[1]", "d{a,b}", "a::b", "d{", "d*", "d\\[x]"}) {
    TemporaryFolder top;
    const std::string folder = top / name;
    std::filesystem::create_directories(folder + "/deep[2]");
    write_shard(folder + "/train-0.tar", {{"a.cls", "0"}});
    write_shard(folder + "/train-1.tar", {{"a.cls", "0"}, {"b.cls", "0"}});
    write_shard(folder + "/deep[2]/x-0.tar", {{"a.cls", "0"}});
    EXPECT_EQ(open(folder).size(), 3) << name;
    EXPECT_EQ(open(folder + "/train-1.tar").size(), 2) << name;
    EXPECT_EQ(open(folder + "/train-{0..1}.tar").size(), 3) << name;
    EXPECT_EQ(open(folder + "/train-*.tar").size(), 3) << name;
    write_text_file(
        folder + "/dataset.json",
        R"({"splits": {"list": "train-{0,1}.tar", "glob": "train-?.tar", "joined": "train-0.tar::train-1.tar",
                        "deep": "deep[2]/x-{0..0}.tar", "glob_deep": "deep*/x-0.tar"}})");
    for (const char* split : {"list", "glob", "joined"}) EXPECT_EQ(open(folder, {.split = split}).size(), 3) << name;
    for (const char* split : {"deep", "glob_deep"}) EXPECT_EQ(open(folder, {.split = split}).size(), 1) << name;
  }
}

TEST(Open, RefusesPipesAtOnce) {
  TemporaryFolder folder;
  const std::string shard = folder / "train-000.tar", description = folder / "dataset.json";
  ASSERT_EQ(mkfifo(shard.c_str(), 0600), 0);
  for (const std::string& url : {folder / "", shard, folder / "train-{000..000}.tar"}) {
    const std::string message = error_of([&] { open(url); });
    EXPECT_THAT(message, HasSubstr(shard));
    EXPECT_THAT(message, HasSubstr("pipe"));
  }
  ASSERT_EQ(mkfifo(description.c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { open(folder / ""); }), HasSubstr(description));
}

TEST(Dataset, IsAValueWhosePartsCanBeShared) {
  const Dataset base = open(kDigits, {.split = "train"}).batch(16);
  const Dataset shuffled = base.shuffle(1).flip();
  EXPECT_FALSE(base.loader_options().order);
  EXPECT_TRUE(base.pipeline().transforms.empty());
  EXPECT_TRUE(shuffled.loader_options().order);
  EXPECT_EQ(shuffled.loader_options().batch_size, 16);
  EXPECT_FALSE(shuffled.sequential().loader_options().order);
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
  EXPECT_THAT(error_of([&] { set.normalize(); }), HasSubstr("does not declare its mean and std"));
  EXPECT_THAT(error_of([&] { set.decode("bgr"); }), HasSubstr("got \"bgr\""));
  EXPECT_THAT(error_of([&] { set.resize(0, 4); }), HasSubstr("height and width from 1 to 65536"));
  EXPECT_THAT(error_of([&] { set.cache(-1); }), HasSubstr("at least 0 bytes, got -1"));
  EXPECT_THAT(error_of([&] { set.num_classes(-1); }), HasSubstr("at least 0, got -1"));
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
