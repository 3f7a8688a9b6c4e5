#include <algorithm>

#include "bellows/data/formats/mds_source.h"
#include "bellows/io/records/mds.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/targets.h"
#include "tests/interop/support.h"
#include "tests/support/errors.h"

namespace bellows::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;
using Json = nlohmann::json;

/// A copy of a golden in which files may be changed.
class MdsHostileTest : public ::testing::Test {
 protected:
  std::string copy(const std::string& name) {
    const std::string target = folder_ / (name + std::to_string(copies_++));
    fs::copy(kMdsGoldens + name, target, fs::copy_options::recursive);
    return target;
  }
  /// What opening says once `change` was made to the index of the golden "all".
  std::string index_error(const std::function<void(Json&)>& change) {
    const std::string target = copy("all");
    Json index = Json::parse(read_text_file(target + "/index.json"));
    change(index);
    put_file(target + "/index.json", index.dump());
    return error_of([&] {
      const SourcePtr source = open_mds(target);
      for (int64_t i = 0; i < source->size(); ++i) source->read(i);
    });
  }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
  int copies_ = 0;
};

std::string write_error(Sink& sink, const Sample& sample) {
  return error_of([&] { sink.write(sample); });
}

}  // namespace

TEST_F(MdsHostileTest, EveryFlippedBitIsFoundByTheHash) {
  for (const char* name : {"hashes", "zstd", "gz", "br", "snappy", "bz2"}) {
    const std::string target = copy(name);
    const io::MdsShard shard = io::parse_mds_index(read_text_file(target + "/index.json"), "x").front();
    const std::string file = target + "/" + (shard.zip ? shard.zip->basename : shard.raw.basename);
    const std::string good = read_text_file(file);
    for (size_t bit = 0; bit < 8 * good.size(); bit += 61) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
      put_file(file, bad);
      EXPECT_THAT(error_of([&] { open_mds(target, {.verify = Verify::open}); }), HasSubstr("expected"));
      EXPECT_THAT(error_of([&] { open_mds(target, {.verify = Verify::first_use})->read(0); }), HasSubstr("expected"));
    }
  }
}

TEST_F(MdsHostileTest, ADamagedShardIsLookedAtOnce) {
  for (const char* name : {"hashes", "zstd"}) {
    const std::string target = copy(name);
    const io::MdsShard shard = io::parse_mds_index(read_text_file(target + "/index.json"), "x").front();
    const std::string file = target + "/" + (shard.zip ? shard.zip->basename : shard.raw.basename);
    const std::string good = read_text_file(file);
    const SourcePtr source = open_mds(target);
    overwrite(file);
    const std::string message = error_of([&] { source->read(0); });
    EXPECT_THAT(message, AllOf(HasSubstr("read: sample"), HasSubstr(file), HasSubstr("expected"))) << name;
    put_file(file, good);  // another look would find nothing
    EXPECT_EQ(error_of([&] { source->read(0); }), message);
    EXPECT_NO_THROW(open_mds(target)->read(0));
  }
}

TEST_F(MdsHostileTest, WithoutHashesNothingBreaks) {
  const std::string target = copy("all");
  const std::string file = target + "/shard.00000.mds", good = read_text_file(file);
  for (size_t bit = 0; bit < 8 * good.size(); bit += 131) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    put_file(file, bad);
    try {
      open_mds(target, {.verify = Verify::never})->read(0);
    } catch (const c10::ValueError&) {
    }
  }
  for (const size_t length : {size_t{0}, size_t{3}, size_t{700}, good.size() - 1}) {
    put_file(file, good.substr(0, length));
    EXPECT_THAT(error_of([&] { open_mds(target, {.verify = Verify::never})->read(0); }),
                HasSubstr(c10::str("found ", length)));
  }
}

TEST_F(MdsHostileTest, AShardThatVanishesOrShrinksIsNamed) {
  const std::string target = copy("all");
  const SourcePtr source = open_mds(target);
  source->read(0);
  fs::resize_file(target + "/shard.00000.mds", 100);
  EXPECT_THAT(error_of([&] { source->read(0); }), HasSubstr("shard.00000.mds"));
  fs::remove(target + "/shard.00001.mds");
  EXPECT_THAT(error_of([&] { open_mds(target); }), HasSubstr("shard.00001.mds, which index.json lists, is missing"));
}

TEST_F(MdsHostileTest, SaysWhatIsWrongWithAnIndex) {
  const auto shard = [](Json& index) -> Json& { return index["shards"][1]; };
  const auto message = [&](const std::function<void(Json&)>& change) {
    return index_error([&](Json& index) { change(shard(index)); });
  };
  EXPECT_THAT(index_error([](Json& index) { index["version"] = 1; }), HasSubstr("expected version 2 of MDS, found 1"));
  EXPECT_THAT(index_error([](Json& index) { index["shards"] = Json::array(); }), HasSubstr("lists no shards"));
  EXPECT_THAT(index_error([](Json& index) { index["shards"] = 3; }), HasSubstr("expected \"shards\" to be a list"));
  EXPECT_THAT(index_error([](Json& index) { index = 3; }), HasSubstr("expected an object"));
  EXPECT_THAT(message([](Json& one) { one["format"] = "json"; }), HasSubstr("index.json, shard 1: expected version 2"));
  EXPECT_THAT(message([](Json& one) { one.erase("samples"); }), HasSubstr("shard 1: \"samples\" is missing"));
  EXPECT_THAT(message([](Json& one) { one["samples"] = -1; }), HasSubstr("whole number"));
  EXPECT_THAT(message([](Json& one) { one["samples"] = 1u << 31; }), HasSubstr("too small for"));
  EXPECT_THAT(message([](Json& one) { one["raw_data"]["bytes"] = 1ull << 39; }), HasSubstr("smaller than 4 GiB"));
  EXPECT_THAT(message([](Json& one) { one["raw_data"]["basename"] = "../x"; }), HasSubstr("in the same folder"));
  EXPECT_THAT(message([](Json& one) { one["raw_data"]["basename"] = "/etc/passwd"; }), HasSubstr("in the same folder"));
  EXPECT_THAT(message([](Json& one) { one["column_sizes"][2] = 4; }),
              HasSubstr("\"f16\" (float16): expected the size 2"));
  EXPECT_THAT(message([](Json& one) { one["column_sizes"][0] = 4; }), HasSubstr("expected the size null"));
  EXPECT_THAT(message([](Json& one) { one["column_encodings"][1] = "bites"; }), HasSubstr("Did you mean \"bytes\"?"));
  EXPECT_THAT(message([](Json& one) { one["column_encodings"][0] = "ndarray:float31"; }), HasSubstr("ndarray:DTYPE"));
  EXPECT_THAT(message([](Json& one) { one["column_encodings"][5] = "ndarray:int16:2,0"; }),
              HasSubstr("positive sizes"));
  EXPECT_THAT(message([](Json& one) { one["column_encodings"][5] = "ndarray:int16:4294967295,4294967295,4294967295"; }),
              HasSubstr("larger than the limit of a shard"));
  EXPECT_THAT(message([](Json& one) { one["column_names"][1] = "any"; }), HasSubstr("\"any\" occurs twice"));
  EXPECT_THAT(message([](Json& one) { one["column_names"].erase(0); }),
              HasSubstr("the same number of columns, encodings and sizes"));
  EXPECT_THAT(message([](Json& one) { one["compression"] = "zstd"; }), HasSubstr("zip_data is missing"));
  EXPECT_THAT(message([](Json& one) {
                one["compression"] = "zst";
                one["zip_data"] = one["raw_data"];
              }),
              HasSubstr("Did you mean \"zstd\"?"));
}

TEST_F(MdsHostileTest, TheIndexMustFitItsShards) {
  EXPECT_THAT(index_error([](Json& index) { index["shards"][0]["samples"] = 3; }),
              HasSubstr("expected 3 samples, as index.json says, found 2"));
  EXPECT_THAT(index_error([](Json& index) {
                for (auto& one : index["shards"]) one["column_names"][1] = "c";
              }),
              HasSubstr("the columns differ from those in index.json"));
  const std::string deep = copy("all");
  put_file(deep + "/index.json", "{\"version\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}");
  EXPECT_THAT(error_of([&] { open_mds(deep); }), HasSubstr("found deeper nesting"));
}

TEST_F(MdsHostileTest, PicklesAreRefused) {
  EXPECT_THAT(error_of([] { open_mds(kMdsGoldens + "pkl"); }), HasSubstr("column \"x\": the encoding pkl"));
  EXPECT_THAT(error_of([&] { mds_sink(path("p"), {.columns = {{"x", "pkl"}}}); }), HasSubstr("can run code"));
}

TEST_F(MdsHostileTest, AFolderWithoutAnIndexListsItsSplits) {
  fs::create_directories(path("splits/train"));
  fs::copy(kMdsGoldens + "all/index.json", path("splits/train/index.json"));
  EXPECT_THAT(error_of([&] { open_mds(path("splits")); }), HasSubstr("The folder has the splits train. Open one"));
  EXPECT_THAT(error_of([&] { open_mds(path("splits/train/x")); }), HasSubstr("Expected a folder that MDSWriter wrote"));
}

TEST_F(MdsHostileTest, NothingToVerifyIsAnError) {
  const std::string target = copy("pkl");
  std::string index = read_text_file(target + "/index.json");
  index.replace(index.find("pkl"), 3, "str");
  put_file(target + "/index.json", index);
  EXPECT_THAT(error_of([&] { open_mds(target, {.verify = Verify::open}); }),
              HasSubstr("no hashes for shard.00000.mds"));
  EXPECT_GT(open_mds(target)->size(), 0) << "first_use compares what there is";
  const std::string unknown = copy("hashes");
  Json others = Json::parse(read_text_file(unknown + "/index.json"));
  for (Json& shard : others["shards"]) shard["raw_data"]["hashes"] = {{"md6", "00"}};
  put_file(unknown + "/index.json", others.dump());
  EXPECT_THAT(error_of([&] { open_mds(unknown, {.verify = Verify::open}); }), HasSubstr("no algorithm has the name"));
  EXPECT_NO_THROW(open_mds(unknown)->read(0));
}

TEST_F(MdsHostileTest, TheSinkRefusesWhatTheFormatCannotHold) {
  const std::vector<uint8_t> flag{1};
  Sample sample;
  sample.fields = {array_field("x", flag, c10::kBool)};
  EXPECT_THAT(write_error(*mds_sink(path("a")), sample), HasSubstr("MDS does not support values of Bool"));
  sample.fields = {array_field("x", flag, c10::kByte, {1, 0})};
  EXPECT_THAT(write_error(*mds_sink(path("a")), sample), HasSubstr("non-empty"));
  sample.fields = {file_field("x", "\xff")};
  EXPECT_THAT(write_error(*mds_sink(path("a"), {.columns = {{"x", "str"}}}), sample), HasSubstr("expected UTF-8"));
  EXPECT_THAT(write_error(*mds_sink(path("a"), {.columns = {{"x", "int"}}}), sample),
              HasSubstr("stores arrays, not files"));
  EXPECT_THAT(write_error(*mds_sink(path("a"), {.columns = {{"y", "str"}}}), sample), HasSubstr("has no \"y\""));
  sample.fields.push_back(file_field("y", "more"));
  EXPECT_THAT(write_error(*mds_sink(path("a"), {.columns = {{"y", "str"}}}), sample),
              HasSubstr("has fields that are not columns"));
  EXPECT_FALSE(fs::exists(path("a"))) << "nothing stays behind without close()";
  EXPECT_THAT(error_of([&] { mds_sink(path("a"), {.compression = "zstd:40"}); }), HasSubstr("zstd:1 to zstd:22"));
  EXPECT_THAT(error_of([&] { mds_sink(path("a"), {.size_limit = 1ull << 32}); }), HasSubstr("less than 4 GiB"));
  fs::create_directories(path("full/x"));
  EXPECT_THAT(error_of([&] { mds_sink(path("full")); }), HasSubstr("already exists"));
}

TEST_F(MdsHostileTest, AfterAFailedWriteNothingIsPutInPlace) {
  const auto sink = mds_sink(path("a"), {.size_limit = 1});
  Sample sample;
  sample.fields = {file_field("x", "text")};
  sink->write(sample);
  for (const auto& entry : fs::directory_iterator(fs::path(path("a")).parent_path())) fs::remove_all(entry);
  EXPECT_THAT(message_of([&] { sink->write(sample); }), HasSubstr("must exist"));
  EXPECT_THAT(message_of([&] { sink->write(sample); }), HasSubstr("an earlier write failed"));
  EXPECT_THAT(message_of([&] { sink->close(); }), HasSubstr("an earlier write failed"));
  EXPECT_FALSE(fs::exists(path("a")));
}

TEST_F(MdsHostileTest, KeysAreForAllOrNone) {
  Sample sample;
  sample.fields = {file_field("x", "text")};
  const auto sink = mds_sink(path("a"));
  sink->write(sample);
  sample.key = "key";
  EXPECT_THAT(write_error(*sink, sample), HasSubstr("has a key, but other samples have none"));
}

TEST_F(MdsHostileTest, MutatedFiles) {
  std::vector<io::Bytes> seeds;
  for (const char* name : {"all/shard.00000.mds", "all/shard.00002.mds", "all/index.json", "zstd/index.json"}) {
    const std::string text = read_text_file(kMdsGoldens + name);
    seeds.emplace_back(io::as_bytes(text).begin(), io::as_bytes(text).end());
  }
  fuzz::sample_fuzzing(seeds, fuzz::mds);
}

}  // namespace bellows::data::testing
