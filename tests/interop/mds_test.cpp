#include <numeric>
#include <thread>

#include "bellows/data/formats/mds_source.h"
#include "bellows/data/rename.h"
#include "bellows/io/archives/compress.h"
#include "bellows/io/hash.h"
#include "bellows/io/records/mds.h"
#include "bellows/io/records/mds_value.h"
#include "tests/interop/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kCodecs[] = {"br", "bz2", "gz", "snappy", "zstd", "zstd:7", "br:3", "bz2:1", "gz:1"};

std::string mds_folder(std::string codec) {
  std::replace(codec.begin(), codec.end(), ':', '_');
  return kMdsGoldens + codec;
}

const Json& expectations() {
  static const Json expected = Json::parse(read_text_file(kMdsGoldens + "expected.json"));
  return expected;
}

std::vector<io::MdsShard> index_of(const std::string& folder) {
  return io::parse_mds_index(read_text_file(folder + "/index.json"), folder);
}

/// What MDSWriter was told when it wrote `folder`.
MdsSinkOptions options_of(const std::string& folder) {
  const io::MdsShard shard = index_of(folder).front();
  MdsSinkOptions options{.compression = shard.compression, .hashes = shard.hashes};
  options.size_limit = shard.size_limit.value_or(0);
  for (const io::MdsColumn& column : shard.columns) options.columns.emplace_back(column.name, column.encoding);
  return options;
}

void expect_plain(const Source& source) {
  const Json& plain = expectations().at("plain");
  ASSERT_EQ(source.size(), static_cast<int64_t>(plain.size()));
  for (int64_t i = 0; i < source.size(); ++i) {
    const Sample sample = source.read(i);
    EXPECT_EQ(io::as_text(sample.find("text")->bytes), plain[static_cast<size_t>(i)]["text"]);
    int64_t number = -1;
    std::memcpy(&number, sample.find("number")->bytes.data(), 8);
    EXPECT_EQ(number, i);
  }
}

void copy_folder(const std::string& from, const std::string& to) {
  fs::copy(from, to, fs::copy_options::recursive);
}

}  // namespace

TEST(MdsTest, ReadsEveryEncodingAsStreamingWroteIt) {
  const SourcePtr source = open_mds(kMdsGoldens + "all", {.verify = Verify::open});
  const Json& all = expectations().at("all");
  ASSERT_EQ(source->size(), static_cast<int64_t>(all.size()));
  for (int64_t i = 0; i < source->size(); ++i) {
    const Json found = described(source->read(i)), &wanted = all[static_cast<size_t>(i)];
    for (const auto& [name, value] : wanted.items()) EXPECT_EQ(found.at(name), value) << "sample " << i << ", " << name;
    EXPECT_EQ(found.size(), wanted.size());
  }
  EXPECT_EQ(source->block_starts().size(), index_of(kMdsGoldens + "all").size());
  EXPECT_GT(source->block_starts().size(), 2U);
}

TEST(MdsTest, WritesTheBytesOfStreaming) {
  const OutputFolder out;
  for (const char* name : {"all", "hashes", "bz2", "bz2:1"}) {
    const std::string golden = mds_folder(name), written = out / fs::path(golden).filename().string();
    const SourcePtr source = open_mds(golden);
    copy_all(*source, *mds_sink(written, options_of(golden)));
    size_t files = 0;
    for (const auto& entry : fs::directory_iterator(golden)) {
      const std::string file = entry.path().filename().string();
      EXPECT_TRUE(read_text_file(entry.path().string()) == read_text_file(written + "/" + file)) << name << " " << file;
      ++files;
    }
    EXPECT_EQ(files, static_cast<size_t>(std::distance(fs::directory_iterator(written), fs::directory_iterator())));
  }
}

TEST(MdsTest, ReadsAndWritesEveryCompression) {
  const OutputFolder out;
  for (const std::string codec : kCodecs) {
    const std::string golden = mds_folder(codec);
    const SourcePtr source = open_mds(golden, {.verify = Verify::first_use});
    expect_plain(*source);
    if (codec.starts_with("bz2")) continue;  // written above
    const std::string written = out / fs::path(golden).filename().string();
    copy_all(*source, *mds_sink(written, options_of(golden)));
    expect_plain(*open_mds(written, {.verify = Verify::open}));
    const auto ours = index_of(written), theirs = index_of(golden);
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].raw.hashes, theirs[i].raw.hashes) << codec;
      EXPECT_EQ(ours[i].zip->basename, theirs[i].zip->basename);
    }
  }
}

TEST(MdsTest, GzipDiffersOnlyInItsTimeStamp) {
  const std::string packed = read_text_file(kMdsGoldens + "gz/shard.00000.mds.gz");
  const uint64_t size = index_of(kMdsGoldens + "gz")[0].raw.bytes;
  const io::Codec codec = io::Codec::parse("gz");
  const io::Bytes raw = io::uncompress(io::as_bytes(packed), codec, size, "x");
  std::string ours(io::as_text(io::compress(raw, codec)));
  ours.replace(4, 4, packed, 4, 4);
  EXPECT_EQ(hex(io::as_bytes(ours)), hex(io::as_bytes(packed)));
}

TEST(MdsTest, ComputesEveryHash) {
  const io::MdsShard shard = index_of(kMdsGoldens + "hashes").front();
  const std::string content = read_text_file(kMdsGoldens + "hashes/shard.00000.mds");
  EXPECT_EQ(shard.hashes, io::hash_names());
  ASSERT_EQ(shard.raw.hashes.size(), io::hash_names().size());
  for (const auto& [name, digest] : shard.raw.hashes)
    EXPECT_EQ(io::hash_hex(name, io::as_bytes(content)), digest) << name;
  EXPECT_THAT(error_of([] { io::hash_hex("sha255", {}); }), HasSubstr("Did you mean \"sha256\"?"));
}

TEST(MdsTest, UsesTheShardAsItIsWhereBothAreThere) {
  TemporaryFolder folder;
  copy_folder(kMdsGoldens + "zstd", folder / "a");
  const auto shards = index_of(folder / "a");
  for (const io::MdsShard& shard : shards) {
    const std::string packed = read_text_file(folder / "a/" + shard.zip->basename);
    const auto raw = io::uncompress(io::as_bytes(packed), io::Codec::parse("zstd"), shard.raw.bytes, "x");
    write_text_file(folder / "a/" + shard.raw.basename, io::as_text(raw));
    fs::remove(folder / "a/" + shard.zip->basename);
  }
  expect_plain(*open_mds(folder / "a", {.verify = Verify::open}));
}

TEST(MdsTest, LearnsColumnsAndKeepsKeys) {
  const OutputFolder out;
  const std::string picture = a_png();
  const auto write = [&](const std::string& name, uint64_t size_limit) {
    const auto sink = mds_sink(out / name, {.hashes = {"xxh64"}, .size_limit = size_limit});
    for (int64_t i = 0; i < 3; ++i) {
      const std::string key = "key" + std::to_string(i), json = "{\"i\": " + std::to_string(i) + "}";
      std::vector<float> values(6);
      std::iota(values.begin(), values.end(), static_cast<float>(i));
      const std::vector<int64_t> label{i};
      Sample sample;
      sample.key = key;
      sample.fields = {file_field("png", picture), file_field("json", json), array_field("label", label, c10::kLong),
                       array_field("x", values, c10::kFloat, {2, 3})};
      sink->write(sample);
    }
    sink->close();
  };
  write("learnt", 1 << 26);
  write("learnt_small", 1);  // a shard each, and none that is empty
  EXPECT_EQ(index_of(out / "learnt_small").size(), 3U);
  const io::MdsShard shard = index_of(out / "learnt").front();
  std::string columns;
  for (const io::MdsColumn& column : shard.columns) columns += column.name + "=" + column.encoding + " ";
  EXPECT_EQ(columns, "__key__=str json=json label=int png=png x=ndarray:float32 ");
  const SourcePtr a = open_mds(out / "learnt"), b = open_mds(out / "learnt_small");
  EXPECT_EQ(a->read(2).key, "key2");
  EXPECT_EQ(a->read(1).find("png")->bytes.size(), picture.size());
  EXPECT_EQ(a->read(1).find("x")->sizes, c10::IntArrayRef({2, 3}));
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(shown(a->read(i)), shown(b->read(i)));
}

TEST(MdsTest, NamesCanBeChanged) {
  const SourcePtr source = rename_fields(open_mds(kMdsGoldens + "zstd"), {{"number", "label"}});
  EXPECT_EQ(source->read(3).find("label")->dtype, c10::kLong);
  EXPECT_EQ(source->read(3).find("number"), nullptr);
  EXPECT_EQ(source->block_starts(), open_mds(kMdsGoldens + "zstd")->block_starts());
  const SourcePtr few = rename_fields(subset(open_mds(kMdsGoldens + "zstd"), {1, 2}), {{"number", "label"}});
  EXPECT_EQ(few->id_bound(), source->size()) << "ids stay those of the whole";
  const SourcePtr twice = rename_fields(open_mds(kMdsGoldens + "zstd"), {{"number", "text"}});
  EXPECT_THAT(error_of([&] { twice->read(0); }), HasSubstr("has a field \"text\" in addition to \"number\""));
}

TEST(MdsTest, NumbersAreWrittenAsTexts) {
  TemporaryFolder folder;
  const std::vector<int64_t> whole{-5};
  const std::vector<double> real{0.1};
  const std::vector<uint8_t> pixels(12, 7);
  const auto sink = mds_sink(folder / "a", {.columns = {{"i", "str_int"}, {"f", "str_float"}, {"p", "pil"}}});
  Sample sample;
  sample.fields = {array_field("i", whole, c10::kLong), array_field("f", real, c10::kDouble),
                   array_field("p", pixels, c10::kByte, {2, 2, 3})};
  sink->write(sample);
  sink->close();
  EXPECT_EQ(described(open_mds(folder / "a")->read(0)), described(sample));
  EXPECT_THAT(read_text_file(folder / "a/shard.00000.mds"), HasSubstr("RGB"));
}

TEST(MdsTest, LongSizesTakeMoreBytes) {
  TemporaryFolder folder;
  const std::vector<uint8_t> values(70'000, 3);
  const std::vector<int64_t> sizes[] = {{70'000}, {255, 1}, {256}, {65'535}, {65'536, 1}};
  const auto sink = mds_sink(folder / "a", {.columns = {{"x", "ndarray"}}});
  for (const auto& size : sizes) {
    Sample sample;
    sample.fields = {array_field("x", values, c10::kByte, size)};
    sample.fields[0].bytes = sample.fields[0].bytes.first(static_cast<size_t>(size[0]));
    sink->write(sample);
  }
  sink->close();
  const SourcePtr source = open_mds(folder / "a");
  for (int64_t i = 0; i < source->size(); ++i) EXPECT_EQ(source->read(i).fields[0].sizes, c10::IntArrayRef(sizes[i]));
}

TEST(MdsTest, ManyThreadsUnpackEachShardOnce) {
  const SourcePtr source = open_mds(kMdsGoldens + "zstd", {.verify = Verify::first_use});
  std::vector<std::string> expected;
  for (int64_t i = 0; i < source->size(); ++i) expected.push_back(shown(source->read(i)));
  TemporaryFolder folder;
  copy_folder(kMdsGoldens + "zstd", folder / "a");
  const SourcePtr fresh = open_mds(folder / "a", {.verify = Verify::first_use});
  std::atomic<int> wrong{0};
  const auto read_by_four = [&] {
    std::vector<std::jthread> threads;
    threads.reserve(4);
    for (int64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        Sample sample;
        for (int64_t i = 0; i < 200; ++i) {
          const int64_t index = (i * 3 + t) % fresh->size();
          fresh->read(index, sample);
          wrong += shown(sample) == expected[static_cast<size_t>(index)] ? 0 : 1;
        }
      });
    }
  };
  read_by_four();
  for (const io::MdsShard& shard : index_of(folder / "a")) overwrite(folder / ("a/" + shard.zip->basename));
  EXPECT_NO_THROW(read_by_four()) << "nothing is unpacked again";
  EXPECT_EQ(wrong, 0);
}

TEST(MdsTest, ReadsPicturesOfEveryMode) {
  for (const auto& [mode, channels] :
       std::vector<std::pair<std::string, int64_t>>{{"CMYK", 4}, {"P", 1}, {"YCbCr", 3}}) {
    std::string bytes;
    for (const uint32_t number : {2U, 3U, static_cast<uint32_t>(mode.size())}) io::append_little(bytes, number);
    bytes += mode + std::string(static_cast<size_t>(6 * channels), 'x');
    std::vector<int64_t> sizes;
    io::Bytes unused;
    io::MdsEncoding::parse("pil").decode(io::as_bytes(bytes), sizes, unused);
    EXPECT_THAT(sizes, ElementsAre(3, 2, channels));
    bytes.replace(12, 1, "?");
    EXPECT_THAT(error_of([&] { io::MdsEncoding::parse("pil").decode(io::as_bytes(bytes), sizes, unused); }),
                HasSubstr("has the mode"));
  }
}

TEST(MdsTest, SplitsParts) {
  const SourcePtr source = open_mds(kMdsGoldens + "all");
  const auto parts = io::mds_list("jpegarray", source->read(1).find("jpegs")->bytes);
  ASSERT_EQ(parts.size(), 2U);
  for (const io::ByteSpan part : parts) EXPECT_EQ(io::describe_content(part), "a JPEG image");
  EXPECT_EQ(io::mds_list("list[pil]", source->read(2).find("pils")->bytes).size(), 2U);
  EXPECT_EQ(io::mds_list("list[png]", source->read(0).find("pngs")->bytes).size(), 0U);
}

}  // namespace bellows::data::testing
