#include <ATen/ops/arange.h>

#include "bellows/core/log.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Keeps what is logged.
class LogKeeper final : public LogSink {
 public:
  LogKeeper() = default;
  void write(LogLevel, std::string_view message) override { lines.emplace_back(message); }
  std::vector<std::string> lines;
};

/// Twelve samples; 3 and 4 do not decode, 8 has a label of 77.
Dataset damaged(const TemporaryFolder& folder) {
  std::vector<Member> members;
  for (int i = 0; i < 12; ++i) {
    std::string png = a_png();
    if (i == 3) png = "<html>not found</html>";
    if (i == 4) png.resize(png.size() / 2);
    members.push_back({c10::str("s", i, ".png"), png});
    members.push_back({c10::str("s", i, ".cls"), i == 8 ? "77" : c10::str(i % 10)});
  }
  write_shard(folder / "bad.tar", members);
  return open(folder / "bad.tar").decode("gray").num_classes(10).batch(4);
}

TEST(BadSample, FailsByNameShardAndOffset) {
  TemporaryFolder folder;
  for (int64_t threads : {0, 1, 4}) {
    Loader loader = damaged(folder).threads(threads).loader();
    const std::string message = error_of([&] { loader.next(); });
    EXPECT_THAT(message, HasSubstr(c10::str("sample \"s3\" (id 3), png at byte ", 512 * (3 * 4 + 1), " of ",
                                            folder / "bad.tar")));
    EXPECT_THAT(message, HasSubstr("decode"));
  }
}

TEST(BadSample, GoesOnBehindAFailedBatch) {
  TemporaryFolder folder;
  Loader loader = damaged(folder).threads(2).loader();
  error_of([&] { loader.next(); });
  EXPECT_THAT(error_of([&] { loader.next(); }), HasSubstr("\"s4\""));
  const std::string message = error_of([&] { loader.next(); });
  EXPECT_THAT(message, HasSubstr("expected a label in [0, 10), found 77"));
  EXPECT_THAT(message, HasSubstr("sample \"s8\" (id 8), cls at byte"));
  EXPECT_FALSE(loader.next().has_value());
}

TEST(BadSample, IsSkippedAndCountedAlikeForAnyNumberOfThreads) {
  TemporaryFolder folder;
  auto keeper = std::make_shared<LogKeeper>();
  const auto before = set_log_sink(keeper);
  std::vector<std::string> expected;
  for (int64_t threads : {0, 1, 3}) {
    keeper->lines.clear();
    Loader loader = damaged(folder).on_bad_sample(OnBadSample::skip).threads(threads).loader();
    std::vector<int64_t> ids;
    std::vector<std::string> batches;
    for (const Batch& batch : loader.epoch(0)) {
      EXPECT_EQ(batch["image"].size(0), batch.size());
      ids.insert(ids.end(), batch.ids().begin(), batch.ids().end());
      for (int64_t i = 0; i < batch.size(); ++i) {
        EXPECT_EQ(batch["label"].const_data_ptr<int64_t>()[i], batch.ids()[static_cast<size_t>(i)] % 10);
      }
      batches.push_back(fingerprint(batch));
    }
    EXPECT_THAT(ids, ElementsAre(0, 1, 2, 5, 6, 7, 9, 10, 11));
    EXPECT_EQ(loader.skipped(), 3);
    ASSERT_EQ(keeper->lines.size(), 3u);
    EXPECT_THAT(keeper->lines[0], HasSubstr("\"s3\""));
    EXPECT_THAT(keeper->lines[2], HasSubstr("found 77"));
    if (threads == 0) expected = batches;
    EXPECT_EQ(batches, expected);
    loader.start(1);
    EXPECT_EQ(loader.skipped(), 0);
  }
  set_log_sink(before);
}

TEST(BadSample, IsReportedOnceAndCountedInLaterEpochs) {
  TemporaryFolder folder;
  auto keeper = std::make_shared<LogKeeper>();
  const auto before = set_log_sink(keeper);
  for (const int64_t threads : {0, 2}) {
    Loader loader = damaged(folder).on_bad_sample(OnBadSample::skip).shuffle(1).threads(threads).loader();
    keeper->lines.clear();
    for (const Batch& batch : loader.epoch(0)) EXPECT_GT(batch.size(), 0);
    EXPECT_EQ(keeper->lines.size(), 3u);
    keeper->lines.clear();
    for (const int64_t epoch : {1, 2}) {
      for (const Batch& batch : loader.epoch(epoch)) EXPECT_GT(batch.size(), 0);
      EXPECT_EQ(loader.skipped(), 3);
      EXPECT_THAT(keeper->lines, ElementsAre("epoch 1: 3 damaged samples skipped (already reported)"))
          << "said again only if their number changes";
    }
    EXPECT_EQ(loader.report().skipped, 9);
  }
  set_log_sink(before);
}

TEST(BadSample, LeavesABatchOutWhenNothingIsLeftOfIt) {
  TemporaryFolder folder;
  const auto before = set_log_sink(nullptr);
  Loader loader = damaged(folder).on_bad_sample(OnBadSample::skip).batch(1).loader();
  std::vector<int64_t> indices;
  for (const Batch& batch : loader.epoch(0)) indices.push_back(batch.index());
  set_log_sink(before);
  EXPECT_THAT(indices, ElementsAre(0, 1, 2, 5, 6, 7, 9, 10, 11));
}

TEST(BadSample, LogsOnlyTheFirstFew) {
  TemporaryFolder folder;
  std::vector<Member> members{{"good.cls", "0"}};
  members.reserve(20);
  for (int i = 0; i < 20; ++i) members.push_back({c10::str("bad", i, ".cls"), "x"});
  write_shard(folder / "bad.tar", members);
  auto keeper = std::make_shared<LogKeeper>();
  const auto before = set_log_sink(keeper);
  Loader loader = open(folder / "bad.tar").on_bad_sample(OnBadSample::skip).loader();
  loader.start(0);
  EXPECT_EQ(loader.next()->size(), 1);
  set_log_sink(before);
  EXPECT_EQ(loader.skipped(), 20);
  EXPECT_EQ(keeper->lines.size(), 6u);
}

TEST(BadSample, StopsAtOnceWhenNoneIsGood) {
  TemporaryFolder folder;
  write_shard(folder / "x.tar", {{"a.png", "no"}, {"b.png", "no"}});
  Loader loader = open(folder / "x.tar").on_bad_sample(OnBadSample::skip).loader();
  EXPECT_THAT(error_of([&] { loader.start(0); }), HasSubstr("sample \"a\""));
  write_shard(folder / "y.tar", {{"a.txt", "no"}});
  Loader texts = open(folder / "y.tar").loader();
  EXPECT_THAT(error_of([&] { texts.next(); }), HasSubstr("contains txt; expected an image"));
}

TEST(BadSample, NamesWhatIsMissing) {
  TemporaryFolder folder;
  write_shard(folder / "x.tar", {{"a.png", a_png()}, {"a.cls", "1"}, {"b.png", a_png()}, {"c.cls", "2"}});
  Loader loader = open(folder / "x.tar").batch(1).loader();
  EXPECT_EQ(loader.next()->size(), 1);
  EXPECT_THAT(error_of([&] { loader.next(); }), HasSubstr("sample \"b\" (id 1), png at byte 2560 of " +
                                                          folder / "x.tar" + " has no label; it contains png"));
  EXPECT_THAT(error_of([&] { loader.next(); }), HasSubstr("has no image; it contains cls"));
}

TEST(BadSample, AtTheFrontDoesNotDecideForTheOthers) {
  const std::vector<Member> rest{{"b.png", a_png()}, {"b.cls", "1"}, {"c.png", a_png()}, {"c.cls", "2"}};
  for (const bool required : {false, true}) {
    for (const Member& first : {Member{"a.png", a_png()}, {"a.cls", "0"}, {"a.txt", "x"}}) {
      TemporaryFolder folder;
      std::vector<Member> members{first};
      members.insert(members.end(), rest.begin(), rest.end());
      write_shard(folder / "x.tar", members);
      const Dataset set = required ? open(folder / "x.tar").require({"image", "label"}) : open(folder / "x.tar");
      Loader strict = set.loader();
      const std::string message = error_of([&] { strict.next(); });
      EXPECT_THAT(message, HasSubstr("sample \"a\" (id 0), "));
      EXPECT_THAT(message, HasSubstr(folder / "x.tar" + (first.name == "a.png" ? " has no label" : " has no image")));
      const auto before = set_log_sink(nullptr);
      Loader lenient = set.on_bad_sample(OnBadSample::skip).loader();
      const Batch batch = *lenient.next();
      set_log_sink(before);
      EXPECT_THAT(batch.ids(), ElementsAre(1, 2));
      EXPECT_EQ(batch["image"].size(0), 2);
      EXPECT_EQ(batch["label"].size(0), 2);
      EXPECT_EQ(lenient.skipped(), 1);
    }
  }
}

TEST(BadSample, IsAnyWithoutWhatIsRequired) {
  TemporaryFolder folder;
  std::vector<Member> members;
  members.reserve(300);
  for (int i = 0; i < 300; ++i) members.push_back({c10::str("s", i, ".cls"), "1"});
  write_shard(folder / "labels.tar", members);
  const Dataset labels = open(folder / "labels.tar").require({"image", "label"});
  Loader none = labels.on_bad_sample(OnBadSample::skip).loader();
  EXPECT_THAT(error_of([&] { none.start(0); }), HasSubstr("sample \"s0\" (id 0), cls at byte 512 of " +
                                                          folder / "labels.tar" + " has no image; it contains cls."));
  members.push_back({"t.png", a_png()});
  members.push_back({"t.cls", "2"});
  write_shard(folder / "one.tar", members);
  const auto before = set_log_sink(nullptr);
  Loader one =
      open(folder / "one.tar").require({"image", "label"}).on_bad_sample(OnBadSample::skip).batch(301).loader();
  EXPECT_THAT(one.next()->ids(), ElementsAre(300));
  set_log_sink(before);
  Loader arrays = Dataset(std::make_shared<CountingSource>(3)).require({"y"}).loader();
  EXPECT_THAT(error_of([&] { arrays.next(); }), HasSubstr("sample 0 has no \"y\"; it contains x."));
}

/// A shard of 64 samples, several pages of memory.
std::string long_shard(const TemporaryFolder& folder) {
  std::vector<Member> members;
  members.reserve(64);
  for (int i = 0; i < 64; ++i) {
    members.push_back({c10::str("s", i, ".png"), a_png()});
    members.push_back({c10::str("s", i, ".cls"), "1"});
  }
  write_shard(folder / "x.tar", members);
  return folder / "x.tar";
}

TEST(CutShard, IsAnErrorThatNamesIt) {
  for (int64_t threads : {0, 2}) {
    TemporaryFolder folder;
    const std::string path = long_shard(folder);
    Loader loader = open(path).batch(8).threads(threads).loader();
    int64_t batches = 0;
    for (const Batch& batch : loader.epoch(0)) batches += batch.size() == 8 ? 1 : 0;
    EXPECT_EQ(batches, 8);
    std::filesystem::resize_file(path, 1000);  // now, that no worker reads it
    loader.start(1);
    const std::string message = error_of([&] { loader.next(); });
    EXPECT_THAT(message, HasSubstr("read: sample \"s0\" (id 0), png at byte 512 of " + path));
    EXPECT_THAT(message, HasSubstr("was truncated while it was read"));
  }
}

TEST(CutShard, IsSkippedFromThereOn) {
  TemporaryFolder folder;
  const std::string path = long_shard(folder);
  Loader loader = open(path).on_bad_sample(OnBadSample::skip).batch(8).threads(0).loader();
  EXPECT_EQ(loader.next()->size(), 8);
  std::filesystem::resize_file(path, 1000);
  const auto before = set_log_sink(nullptr);
  EXPECT_FALSE(loader.next());
  set_log_sink(before);
  EXPECT_EQ(loader.skipped(), 56);
}

TEST(CutShard, ThatIsReplacedOrRemovedInsteadStaysReadable) {
  TemporaryFolder folder;
  const std::string path = long_shard(folder);
  Loader loader = open(path).batch(8).threads(0).loader();
  EXPECT_EQ(loader.next()->size(), 8);
  write_shard(path, {{"a.cls", "1"}});
  EXPECT_EQ(loader.next()->size(), 8);
  std::filesystem::remove(path);
  EXPECT_EQ(loader.next()->size(), 8);
}

TEST(Labels, ComeFromTextAndJson) {
  TemporaryFolder folder;
  write_shard(folder / "x.tar",
              {{"a.cls", " 4\n"}, {"b.json", "5"}, {"c.json", R"({"label": 6, "x": 1})"}, {"d.cls", "-1"}});
  Loader loader = open(folder / "x.tar").loader();
  const Batch batch = *loader.next();
  const int64_t* labels = batch["label"].const_data_ptr<int64_t>();
  EXPECT_THAT(std::vector<int64_t>(labels, labels + 4), ElementsAre(4, 5, 6, -1));
}

TEST(Labels, ThatAreNoIntegersAreQuoted) {
  for (const Member& m : {Member{"a.cls", "four"},
                          {"a.cls", ""},
                          {"a.cls", "4 4"},
                          {"a.cls", "99999999999999999999"},
                          {"a.json", "{\"class\": 1}"},
                          {"a.json", "{"},
                          {"a.json", "18446744073709551615"},
                          {"a.json", "1.5"}}) {
    TemporaryFolder folder;
    write_shard(folder / "x.tar", {m});
    Loader loader = open(folder / "x.tar").loader();
    const std::string message = error_of([&] { loader.next(); });
    EXPECT_THAT(message, HasSubstr("expected an integer")) << m.content;
    EXPECT_THAT(message, HasSubstr("at byte 512 of " + folder / "x.tar"));
  }
}

TEST(Labels, OfTensorsAreCheckedToo) {
  Loader loader = Dataset(from_tensors({{"label", at::arange(5)}})).num_classes(4).loader();
  EXPECT_THAT(error_of([&] { loader.next(); }), HasSubstr("sample 4: expected a label in [0, 4), found 4"));
}

TEST(Pictures, OfDifferentSizesNeedAResize) {
  TemporaryFolder folder;
  const at::Tensor large = at::arange(9 * 10, at::kByte).view({9, 10, 1});
  const io::Bytes png = io::encode_png(large);
  write_shard(folder / "x.tar",
              {{"a.png", a_png()}, {"b.png", {reinterpret_cast<const char*>(png.data()), png.size()}}});
  const Dataset set = open(folder / "x.tar").decode("gray").on_bad_sample(OnBadSample::skip);
  Loader loader = set.loader();
  EXPECT_THAT(error_of([&] { loader.next(); }),
              HasSubstr("the image is 9 x 10 x 1, but the images before it are 8 x 8 x 1"));
  Loader resized = set.resize(6, 6).loader();
  EXPECT_EQ(resized.next()->size(), 2);
}

TEST(Transforms, ThatDoNotFitNameTheSample) {
  Loader loader = open(kDigits, {.split = "test"}).random_crop(20, 20, 1).loader();
  EXPECT_THAT(error_of([&] { loader.next(); }), HasSubstr("transform: sample \"0220\""));
  Loader float_images =
      Dataset(from_tensors({{"image", at::arange(48, at::kFloat).view({1, 3, 4, 4})}})).flip().loader();
  EXPECT_THAT(error_of([&] { float_images.next(); }), HasSubstr("transforms need images of type uint8 [H, W, C]"));
}

}  // namespace
}  // namespace bellows::data::testing
