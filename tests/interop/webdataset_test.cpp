#include "bellows/data/formats/webdataset.h"

#include <thread>

#include "bellows/data/formats/shard_pattern.h"
#include "bellows/io/archives/decompress.h"
#include "bellows/io/archives/tar_index.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/targets.h"
#include "tests/interop/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kShards = std::string(BELLOWS_SOURCE_DIR) + "/tests/goldens/interop/webdataset/";

const nlohmann::json& expected() {
  static const nlohmann::json document = nlohmann::json::parse(read_text_file(kShards + "expected.json"));
  return document;
}

/// What webdataset would yield for the samples of `source`, as tools/goldens/wds.py writes it.
nlohmann::json as_webdataset(const Source& source) {
  nlohmann::json list = nlohmann::json::array();
  for (int64_t i = 0; i < source.size(); ++i) {
    const Sample sample = source.read(i);
    nlohmann::json item{{"__key__", sample.key}};
    for (const Field& field : sample.fields) item[std::string(field.name)] = hex(field.bytes);
    list.push_back(item);
  }
  return list;
}

/// Indexes go into a folder of the test's own.
class WebDatasetFiles : public ::testing::Test {
 protected:
  WebDatasetFiles() : scope_(io::FileCacheOptions{.folder = folder / "cache"}) {}
  std::vector<std::string> kept_indexes() const {
    std::vector<std::string> paths;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "cache/index", ignored))
      paths.push_back(entry.path());
    return paths;
  }
  std::string copy(const std::string& name) const {
    const std::string path = folder / name;
    std::filesystem::copy_file(kShards + name, path, std::filesystem::copy_options::overwrite_existing);
    return path;
  }
  TemporaryFolder folder;

 private:
  ShardFiles::CacheScope scope_;
};
using WebDatasetReader = WebDatasetFiles;
using WebDatasetWriter = WebDatasetFiles;
using WebDatasetIndex = WebDatasetFiles;

TEST_F(WebDatasetReader, ReadsWhatShardWriterWrote) {
  const SourcePtr train = open_webdataset(expand_shards(kShards + "train-{000000..000002}.tar"));
  EXPECT_EQ(as_webdataset(*train), expected()["train"]);
  EXPECT_THAT(train->block_starts(), ElementsAre(0, 3, 6));
  EXPECT_EQ(as_webdataset(*open_webdataset(expand_shards(kShards + "sizes-*.tar"))), expected()["sizes"]);
}

TEST_F(WebDatasetReader, ReadsCompressedShards) {
  std::vector<std::string> all;
  for (const char* suffix : {"gz", "bz2", "xz", "zst", "lz4"}) {
    all.push_back(kShards + "packed.tar." + suffix);
    EXPECT_EQ(as_webdataset(*open_webdataset({all.back()})), expected()["packed"]) << suffix;
  }
  EXPECT_EQ(kept_indexes().size(), 5U);
  const SourcePtr source = open_webdataset(all);
  EXPECT_EQ(source->block_starts().size(), 5U);
  for (int64_t i = 0; i < source->size(); ++i)
    EXPECT_EQ(source->read(i).key, source->read(i % 7).key) << "through indexes that were kept";
}

TEST_F(WebDatasetReader, TellsSamplesApartAsWebdatasetDoes) {
  for (const char* name : {"traps_ustar.tar", "traps_gnu.tar", "traps_pax.tar"}) {
    const SourcePtr source = open_webdataset({kShards + name});
    nlohmann::json samples = nlohmann::json::array();
    for (const auto& item : expected()[name]) {
      // Of "d/.hidden" webdataset makes a sample "d/" where it passes over ".hidden"; here hidden is hidden.
      if (item["__key__"] != "d/") samples.push_back(item);
    }
    EXPECT_EQ(as_webdataset(*source), samples) << name;
    EXPECT_GE(source->size(), 5) << name;
  }
}

TEST_F(WebDatasetReader, KeepsUnpackedShardsWhileTheyAreUsed) {
  const SourcePtr source = open_webdataset({kShards + "packed.tar.gz"});
  const Sample sample = source->read(3);
  EXPECT_EQ(io::as_text(sample.find("cls")->bytes), "0");
  EXPECT_GT(sample.owner.use_count(), 1);
}

TEST_F(WebDatasetReader, SharesOneUnpackingAmongThreads) {
  const std::vector<std::string> shards{copy("packed.tar.gz"), copy("packed.tar.xz")};
  const SourcePtr source = open_webdataset(shards);
  for (const std::string& shard : shards) overwrite(shard);  // nothing can be unpacked again
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Sample sample;
      for (int64_t i = 0; i < 200; ++i) {
        source->read((i + t) % source->size(), sample);
        EXPECT_FALSE(sample.find("cls")->bytes.empty());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(WebDatasetReader, RefusesBombsAndPathsThatLeadOut) {
  io::TarWriter out(folder / "out.tar");
  out.add("a/../../b.txt", "x");
  out.close();
  EXPECT_THAT(error_of([&] { open_webdataset({folder / "out.tar"}); }),
              HasSubstr("the name \"a/../../b.txt\" at byte 512 contains \"..\", which leads out of the archive"));
  io::TarWriter dots(folder / "dots.tar");
  dots.add("a..b/c...txt", "x");
  dots.close();
  EXPECT_EQ(open_webdataset({folder / "dots.tar"})->size(), 1);
  EXPECT_EQ(io::most_unpacked_bytes(0), uint64_t{256} << 20);
  EXPECT_EQ(io::most_unpacked_bytes(1 << 20), uint64_t{1000} << 20);
  EXPECT_EQ(io::most_unpacked_bytes(UINT64_MAX), uint64_t{16} << 30);
}

TEST_F(WebDatasetReader, NoticesShardsThatVanishOrChange) {
  const std::string gz = copy("packed.tar.gz"), plain = copy("train-000000.tar");
  const SourcePtr packed = open_webdataset({gz}), source = open_webdataset({plain});
  std::filesystem::resize_file(plain, 1000);
  EXPECT_THAT(error_of([&] { source->read(1); }),
              ::testing::AllOf(HasSubstr("read: sample \"train/0001\" (id 1)"), HasSubstr("was truncated")));
  const SourcePtr kept = open_webdataset({copy("packed.tar.gz")});
  std::filesystem::remove(gz);
  EXPECT_EQ(as_webdataset(*packed), expected()["packed"]) << "it is unpacked and mapped";
  // A new one opens by its index only, and maps when it reads.
  open_webdataset({copy("packed.tar.gz")});
  const SourcePtr late = open_webdataset({gz}), later = open_webdataset({gz});
  const auto overwrite = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(kShards + "train-000000.tar", gz, overwrite);
  EXPECT_THAT(error_of([&] { late->read(0); }), HasSubstr("changed since it was opened"));
  std::filesystem::copy_file(kShards + "train-000001.tar", gz, overwrite);  // as long as what was packed
  EXPECT_THAT(error_of([&] { later->read(0); }),
              HasSubstr("the index " + kept_indexes().front() + " does not match the archive"));
}

TEST_F(WebDatasetReader, SurvivesAnyDamage) {
  const std::string shard = read_text_file(kShards + "train-000000.tar");
  for (size_t bit = 0; bit < shard.size() * 8; bit += 101) {
    std::string damaged = shard;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    write_text_file(folder / "x.tar", damaged);
    try {
      as_webdataset(*open_webdataset({folder / "x.tar"}));
    } catch (const c10::ValueError&) {
    } catch (const nlohmann::json::exception&) {  // a key that is no UTF-8
    }
  }
}

TEST_F(WebDatasetIndex, EqualsWds2idx) {
  for (const char* name : {"train-000000", "train-000001", "train-000002", "sizes-00", "sizes-01", "sizes-02"}) {
    const std::string shard = kShards + name + ".tar";
    const MappedFile file(shard);
    const std::vector<io::TarMember> members = io::make_tar_index(file.bytes(), shard).members;
    const std::string golden = read_text_file(shard + ".idx");
    EXPECT_EQ(io::dali_index(members), golden) << name;
    EXPECT_EQ(io::parse_dali_index(golden, "x.idx"), members) << name;
  }
}

TEST_F(WebDatasetIndex, OfDaliIsUsedWhereItFits) {
  const std::string shard = copy("train-000000.tar"), index = folder / "train-000000.idx";
  const std::string good = read_text_file(kShards + "train-000000.tar.idx");
  const auto now = std::filesystem::last_write_time(shard);
  const auto keys = [&] {
    std::filesystem::last_write_time(index, now + std::chrono::seconds(1));
    return as_webdataset(*open_webdataset({shard}));
  };
  nlohmann::json first = nlohmann::json::array();
  for (int i = 0; i < 3; ++i) first.push_back(expected()["train"][i]);
  write_text_file(index, good);
  EXPECT_EQ(keys(), first);
  std::string renamed = good;  // shows that the index was read, and that the shard is looked at nevertheless
  renamed.replace(renamed.find("train/0001.jpg"), 14, "train/000x.jpg");
  write_text_file(index, renamed);
  EXPECT_THAT(error_of(keys),
              HasSubstr("the index " + index + " does not match the archive: expected \"train/000x.jpg\""));
  for (const std::string& bad :
       {std::string("v1.2 1\ncls 512 1 train/0000.cls jpg 1536 0 train/0000.jpg\n"), std::string("v1.2 3\n"),
        std::string("v1.3 1\n"), std::string("no index"), good.substr(0, good.size() / 2)}) {
    write_text_file(index, bad);
    EXPECT_EQ(keys(), first) << bad;
  }
}

TEST_F(WebDatasetIndex, IsKeptAndMadeAnewWhenTheShardChanges) {
  const std::string shard = copy("packed.tar.gz");
  open_webdataset({shard});
  ASSERT_EQ(kept_indexes().size(), 1U);
  const std::string kept = kept_indexes().front(), good = read_text_file(kept);
  const io::TarIndex index = io::decode_tar_index(io::as_bytes(good), kept);
  // One sample less, and nothing wrong with it: what is opened shows that it was used.
  io::TarIndex shorter = index;
  shorter.members.resize(2);
  write_text_file(kept, io::encode_tar_index(shorter));
  EXPECT_EQ(open_webdataset({shard})->size(), 1);
  std::filesystem::last_write_time(shard, std::filesystem::last_write_time(shard) + std::chrono::seconds(1));
  EXPECT_EQ(open_webdataset({shard})->size(), 7) << "another time, another file";
  EXPECT_NE(read_text_file(kept), good);
  for (const std::string& bad : {std::string(), good.substr(0, 50), "x" + good, good + "x"}) {
    write_text_file(kept, bad);
    EXPECT_EQ(open_webdataset({shard})->size(), 7);
  }
}

TEST_F(WebDatasetIndex, ThatLiesIsFoundOut) {
  const std::string shard = copy("packed.tar.gz");
  open_webdataset({shard});
  const std::string kept = kept_indexes().front();
  io::TarIndex index = io::decode_tar_index(io::as_bytes(read_text_file(kept)), kept);
  index.members[2].offset += 512;
  write_text_file(kept, io::encode_tar_index(index));
  const SourcePtr source = open_webdataset({shard});
  EXPECT_EQ(io::as_text(source->read(0).find("cls")->bytes), "0");
  EXPECT_THAT(error_of([&] { source->read(1); }),
              ::testing::AllOf(HasSubstr("read: sample \"train/0001\""),
                               HasSubstr("the index " + kept + " does not match the archive")));
}

TEST(TarIndexFile, ComesBackAndNoticesEachFlippedBit) {
  const io::TarIndex index{"v", 4096, {{"a.txt", 512, 7}, {"", 2048, 0}, {"d/b", 3072, 1024}}};
  const std::string file = io::encode_tar_index(index);
  EXPECT_EQ(io::decode_tar_index(io::as_bytes(file), "x"), index);
  for (size_t bit = 0; bit < file.size() * 8; ++bit) {
    std::string damaged = file;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    error_of([&] { io::decode_tar_index(io::as_bytes(damaged), "x"); });
  }
  for (size_t length = 0; length < file.size(); ++length)
    error_of([&] { io::decode_tar_index(io::as_bytes(file).first(length), "x"); });
  for (const io::TarMember& wrong :
       {io::TarMember{"a", 513, 1}, {"a", 0, 1}, {"a", 512, 3585}, {"a", 8192, 0}, {"../a", 512, 1}})
    error_of([&] { io::decode_tar_index(io::as_bytes(io::encode_tar_index({"v", 4096, {wrong}})), "x"); });
}

TEST(DaliIndex, SaysWhatIsWrongAndWhere) {
  const auto message = [](const std::string& text) { return error_of([&] { io::parse_dali_index(text, "x.idx"); }); };
  EXPECT_THAT(message(""),
              HasSubstr("x.idx: line 1 of an index for DALI: expected \"v1.1\" or \"v1.2\", found the end"));
  EXPECT_THAT(message("v1.2 x\n"), HasSubstr("expected the number of samples, found \"x\""));
  EXPECT_THAT(message("v1.2 0\n"), HasSubstr("at least one sample"));
  EXPECT_THAT(message("v1.2 2\na 512 1 b.a\n"), HasSubstr("expected 2 samples, found 1"));
  EXPECT_THAT(message("v1.2 1\na 512 1 b.a\na 1024 1 c.a\n"), HasSubstr("found more"));
  EXPECT_THAT(message("v1.2 1\na 513 1 b.a\n"), HasSubstr("line 2 of an index for DALI: expected an offset that is a"));
  EXPECT_THAT(message("v1.2 1\na 512\n"), HasSubstr("expected a size, found the end of the line"));
  EXPECT_THAT(message("v1.2 1\na 512 1 b.c\n"), HasSubstr("expected a name that ends with its suffix"));
  EXPECT_THAT(message("v1.2 1\n\n"), HasSubstr("expected a sample's members"));
  EXPECT_THAT(message("v1.2 18446744073709551615\na 512 1 b.a\n"), HasSubstr("found 1"));
  EXPECT_EQ(io::parse_dali_index("v1.1 1\na 512 1 b 1024 2", "x"),
            (std::vector<io::TarMember>{{"", 512, 1}, {"", 1024, 2}}));
  EXPECT_THAT(error_of([] { io::dali_index({{"a b.txt", 512, 1}}); }), HasSubstr("white space"));
  EXPECT_THAT(error_of([] { io::dali_index({{"README", 512, 1}}); }), HasSubstr("found none"));
}

io::Bytes bytes_of(std::string_view text) {
  return {io::as_bytes(text).begin(), io::as_bytes(text).end()};
}

TEST(DaliIndex, MutatedFiles) {
  fuzz::sample_fuzzing({bytes_of("v1.2 2\na 512 1 b.a c 1024 2 b.c\na 1536 1 d.a\n"),
                        bytes_of(read_text_file(kShards + "train-000001.tar.idx"))},
                       fuzz::dali_index);
}

TEST(TarIndexFile, MutatedFiles) {
  fuzz::sample_fuzzing(
      {bytes_of(io::encode_tar_index({"v", 4096, {{"a.txt", 512, 7}, {"", 2048, 0}, {"d/b", 3072, 1024}}}))},
      fuzz::tar_index);
}

/// The samples of tools/goldens/wds.py from what webdataset read of them, written by `sink`.
void write_golden(Sink& sink, const std::string& name) {
  for (const auto& item : expected()[name]) {
    std::vector<std::string> contents, names;
    std::string key = item["__key__"];
    for (const auto& [field, value] : item.items()) {
      if (field == "__key__") continue;
      const std::string text = value;
      std::string bytes;
      for (size_t i = 0; i < text.size(); i += 2) bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
      names.insert(names.begin(), field);  // not sorted
      contents.insert(contents.begin(), bytes);
    }
    Sample sample;
    sample.key = key;
    for (size_t i = 0; i < names.size(); ++i) {
      Field& field = sample.fields.emplace_back();
      field.name = names[i];
      field.bytes = io::as_bytes(contents[i]);
    }
    sink.write(sample);
  }
}

TEST_F(WebDatasetWriter, WritesTheBytesOfShardWriter) {
  const char* kept = std::getenv("BELLOWS_INTEROP_OUT");
  const std::string out = kept ? std::string(kept) + "/" : folder / "";
  const auto train = webdataset_sink(out + "train-%06d.tar", {.max_samples = 3, .dali_index = true});
  write_golden(*train, "train");
  EXPECT_TRUE(std::filesystem::exists(out + "train-000000.tar.unfinished"));
  EXPECT_FALSE(std::filesystem::exists(out + "train-000000.tar"));
  train->close();
  const auto sizes = webdataset_sink(out + "sizes-%02d.tar", {.max_bytes = 1000});
  write_golden(*sizes, "sizes");
  sizes->close();
  for (const char* name :
       {"train-000000.tar", "train-000001.tar", "train-000002.tar", "sizes-00.tar", "sizes-01.tar", "sizes-02.tar"})
    EXPECT_TRUE(read_text_file(out + name) == read_text_file(kShards + name)) << name;
  EXPECT_EQ(read_text_file(out + "train-000001.idx"), read_text_file(kShards + "train-000001.tar.idx"));
  EXPECT_FALSE(std::filesystem::exists(out + "train-000003.tar"));
}

TEST_F(WebDatasetWriter, LeavesNothingWithoutClose) {
  {
    const auto sink = webdataset_sink(folder / "x-%d.tar", {.max_samples = 2});
    write_golden(*sink, "train");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
}

TEST_F(WebDatasetWriter, WritesArraysAsNumpyFiles) {
  const int64_t label = 7;
  const float values[] = {1, 2, 3};
  const int64_t sizes[] = {3};
  Sample sample;
  sample.id = 12;
  Field& first = sample.fields.emplace_back();
  first.name = "label";
  first.bytes = std::as_bytes(std::span(&label, 1));
  first.is_array = true;
  first.dtype = c10::ScalarType::Long;
  Field& second = sample.fields.emplace_back();
  second.name = "x";
  second.bytes = std::as_bytes(std::span(values));
  second.is_array = true;
  second.dtype = c10::ScalarType::Float;
  second.sizes = sizes;
  const auto sink = webdataset_sink(folder / "x.tar");
  sink->write(sample);
  sink->close();
  const SourcePtr source = open_webdataset({folder / "x.tar"});
  const Sample read = source->read(0);
  EXPECT_EQ(read.key, "000000012");
  EXPECT_EQ(io::as_text(read.find("cls")->bytes), "7");
  EXPECT_EQ(io::as_text(read.find("x.npy")->bytes).substr(1, 5), "NUMPY");
}

TEST_F(WebDatasetWriter, RefusesWhatWouldNotComeBack) {
  const auto sink = webdataset_sink(folder / "x-%03d.tar");
  const auto message = [&](std::string_view key, std::initializer_list<std::string_view> names) {
    Sample sample;
    sample.key = key;
    for (const std::string_view name : names) sample.fields.emplace_back().name = name;
    return error_of([&] { sink->write(sample); });
  };
  EXPECT_THAT(message("a.b", {"txt"}), HasSubstr("could not be separated"));
  EXPECT_THAT(message("a", {"TXT"}), HasSubstr("could not be separated"));
  EXPECT_THAT(message("a", {"b/c"}), HasSubstr("could not be separated"));
  EXPECT_THAT(message("__a__/b", {"txt"}), HasSubstr("could not be separated"));
  EXPECT_THAT(message("../a", {"txt"}), HasSubstr("leads out of the archive"));
  EXPECT_THAT(message("a", {"txt", "txt"}), HasSubstr("two fields would get the name \".txt\""));
  EXPECT_THAT(message("a", {}), HasSubstr("has no fields"));
  Sample good;
  good.key = "d.e/a";
  good.fields.emplace_back().name = "txt";
  sink->write(good);
  EXPECT_THAT(error_of([&] { sink->write(good); }), HasSubstr("two samples in a row have the key"));
  for (const char* pattern : {"x-%s.tar", "%d-%d.tar", "x-%", "x-%5d.tar", "x-%0000d", ""})
    EXPECT_THAT(error_of([&] { webdataset_sink(pattern); }), HasSubstr("webdataset_sink: expected")) << pattern;
}

}  // namespace
}  // namespace bellows::data::testing
