#include <ATen/ops/randint.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <set>

#include "bellows/data/convert/compare.h"
#include "bellows/data/convert/verify.h"
#include "bellows/data/for_each_spaced.h"
#include "tests/data/convert/convert_support.h"

namespace bellows::data {

namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

}  // namespace

// A source that gives something else the second time stands for a disk that does.
TEST(Convert, WhatDiffersAfterWritingIsFound) {
  const TemporaryFolder folder;
  for (const char* name : {"a.pack", "a.tar", "a.tfrecord"}) {
    std::atomic<int64_t> reads{0};
    const auto counting = std::make_shared<CountingSource>(20, [&](int64_t) { ++reads; });
    EXPECT_NO_THROW(convert(Dataset(counting), folder / name, {.threads = 1}));
    EXPECT_GE(reads, 40) << "all samples of a small set are compared";
  }
  const auto half = [](Sample& sample) {
    for (Field& field : sample.fields) field.bytes = field.bytes.first(1);
  };
  const std::pair<const char*, const char*> targets[] = {{"b.pack", ""},  {"b.tar", ""}, {"b.tfrecord", ""},
                                                         {"b.beton", ""}, {"b", "mds"},  {"c", "folder"}};
  for (const auto& [name, format] : targets) {
    const std::string path = folder / name, staging = path + ".packing";
    const Dataset changing = changing_digits(staging + "/" + name, half);
    const ConvertOptions options{.format = format};
    const std::string message = error_of([&] { convert(changing, path, options); });
    EXPECT_THAT(message, HasSubstr("differs from what was written")) << name;
    EXPECT_THAT(message, AllOf(HasSubstr("Nothing has been moved to " + path),
                               HasSubstr("The written files are in " + staging)));
    EXPECT_FALSE(std::filesystem::exists(path)) << "what is not verified has not the final name";
  }
  const Dataset changing = changing_digits(folder / "shards/.packing/test-000000.tar", half);
  EXPECT_THAT(error_of([&] { convert(changing, folder / "shards", {.format = "webdataset"}); }),
              HasSubstr("The written files are in " + folder / "shards/.packing"));
  EXPECT_THAT(names_in(folder / "shards"), ElementsAre(".packing")) << "no dataset.json";
}

// The same command compares anew, and puts in place what is right after all.
TEST(Convert, WhatWaitsIsVerifiedAgain) {
  const TemporaryFolder folder;
  convert(digits(), folder / "whole.tar");
  bool broken = true;
  const auto fail = [&](Sample&) { TORCH_CHECK_VALUE(!broken, "the cable is loose"); };
  const Dataset source = changing_digits(folder / "a.tar.packing/a.tar", fail);
  EXPECT_THAT(error_of([&] { convert(source, folder / "a.tar"); }),
              AllOf(HasSubstr("the cable is loose"), HasSubstr("Run the same command again to resume")));
  EXPECT_THAT(names_in(folder / ""), ElementsAre("a.tar.packing", "whole.tar"));
  broken = false;
  EXPECT_EQ(convert(source, folder / "a.tar").kept, 359);
  EXPECT_TRUE(all_bytes(folder / "a.tar") == all_bytes(folder / "whole.tar"));
  EXPECT_THAT(names_in(folder / ""), ElementsAre("a.tar", "whole.tar"));
}

// Stopped while it verifies, it has not verified.
TEST(Convert, AStopWhileVerifyingPutsNothingInPlace) {
  const TemporaryFolder folder;
  std::atomic<bool> stop{false};
  const Dataset source = changing_digits(folder / "a.pack.packing/a.pack", [&](Sample&) { stop = true; });
  const ConvertOptions options{.threads = 1, .stop = &stop};
  EXPECT_TRUE(convert(source, folder / "a.pack", options).stopped);
  EXPECT_THAT(names_in(folder / ""), ElementsAre("a.pack.packing"));
  EXPECT_EQ(convert(source, folder / "a.pack").compared, 256);
  EXPECT_THAT(names_in(folder / ""), ElementsAre("a.pack"));
}

// A format with an order of its own is read through once before anything is compared.
TEST(Convert, AStopEndsTheSearchForPositions) {
  static std::atomic<int64_t> reads{0};
  const OutputFormat format{.name = "ordered",
                            .open = [](const std::vector<std::string>&) -> SourcePtr {
                              return std::make_shared<CountingSource>(20, [](int64_t) { ++reads; });
                            },
                            .file_name = [](const Sample&) { return std::string(".x"); }};
  const std::atomic<bool> stop{true};
  EXPECT_FALSE(verify_shards(CountingSource(20), format, {}, {.stop = &stop}, 1, {{.name = "a", .samples = 20}}));
  EXPECT_EQ(reads, 0);
}

// Killed between the names, the same command gives the others theirs.
TEST(Convert, GoesOnWhilePuttingInPlace) {
  const TemporaryFolder folder;
  const ConvertOptions options{.format = "webdataset", .shard_samples = 100};
  convert(digits(), folder / "whole", options);
  std::atomic<bool> stop{true};
  ConvertOptions stopped = options;
  stopped.stop = &stop;
  EXPECT_TRUE(convert(digits(), folder / "a", stopped).stopped);
  const std::string staging = folder / "a/.packing/";
  auto state = nlohmann::json::parse(read_text_file(staging + "packing.json"));
  for (int shard = 0; shard < 4; ++shard) {
    const std::string name = c10::str("test-00000", shard, ".tar");
    std::filesystem::copy_file(folder / ("whole/" + name), (shard < 2 ? folder / "a/" : staging) + name);
    state["shards"].push_back(
        {{"name", name}, {"samples", shard < 3 ? 100 : 59}, {"kept", 0}, {"unnamed", 0}, {"digest", 0}});
  }
  state["compared"] = 256;
  write_text_file(staging + "packing.json", state.dump());
  const ConvertResult result = convert(digits(), folder / "a", options);
  EXPECT_EQ(result.samples, 359);
  EXPECT_EQ(result.compared, 256);
  EXPECT_TRUE(all_bytes(folder / "a") == all_bytes(folder / "whole"));
}

// Not only of the samples that are compared field by field.
TEST(Convert, AllKeysAreCompared) {
  const TemporaryFolder folder;
  const SourcePtr source = open(kDigits, {.split = "train"}).source();
  const OutputFormat& tar = find_output_format("webdataset", "");
  uint64_t right = 0, wrong = 0;
  Sample sample;
  for (int64_t i = 0; i < source->size(); ++i) {
    source->read(i, sample);
    right += sample_digest(tar, sample, i);
    if (i == 7) sample.key = "another";
    wrong += sample_digest(tar, sample, i);
  }
  EXPECT_NE(right, wrong);
  std::atomic<bool> stop{true};
  EXPECT_TRUE(convert(Dataset(source), folder / "a.tar", {.stop = &stop}).stopped);
  convert(Dataset(source), folder / "b.tar");
  const std::string state = folder / "a.tar.packing/packing.json";
  auto json = nlohmann::json::parse(read_text_file(state));
  json["shards"] = nlohmann::json::array();
  json["shards"].push_back({{"name", "a.tar"}, {"samples", 1438}, {"kept", 0}, {"unnamed", 0}, {"digest", wrong}});
  write_text_file(state, json.dump());
  std::filesystem::copy_file(folder / "b.tar", folder / "a.tar.packing/a.tar");
  EXPECT_THAT(error_of([&] { convert(Dataset(source), folder / "a.tar"); }),
              HasSubstr("the keys of a.tar differ from the written samples"));
  json["shards"][0]["digest"] = right;
  write_text_file(state, json.dump());
  EXPECT_NO_THROW(convert(Dataset(source), folder / "a.tar"));
}

TEST(Convert, FoldersAreCompared) {
  const TemporaryFolder folder;
  const auto as_zero = [](Sample& sample) {
    for (Field& field : sample.fields)
      if (field.name == "cls") field.bytes = io::as_bytes("0");
  };
  const Dataset changing = changing_digits(folder / "a.packing/a", as_zero);
  EXPECT_THAT(error_of([&] { convert(changing, folder / "a", {.format = "folder"}); }),
              HasSubstr("after writing, \"00000/"));
  const ConvertResult result = convert(digits(), folder / "b", {.format = "folder"});
  EXPECT_EQ(result.compared, 256);
}

// Which columns are numbers is told by all rows together, so one alone may come back as something else.
TEST(Convert, EveryRowOfATableIsCompared) {
  const TemporaryFolder folder;
  constexpr int64_t rows = 1000;
  std::set<int64_t> usual;
  for_each_spaced(rows, 256, [&](int64_t row) { usual.insert(row); });
  ASSERT_FALSE(usual.contains(500));
  std::string lines;
  for (int64_t row = 0; row < rows; ++row) lines += c10::str("{\"x\": \"", row == 500 ? "2.50" : "1.5", "\"}\n");
  write_text_file(folder / "a.jsonl", lines);
  EXPECT_THAT(error_of([&] { convert(open(folder / "a.jsonl"), folder / "a.csv"); }),
              HasSubstr("\"x\" was the text \"2.50\" and is now the number 2.5"));
  EXPECT_EQ(convert(open(folder / "a.jsonl"), folder / "a.pack").compared, 256);
}

TEST(Convert, MdsHasHashesThatFindADamagedShard) {
  const TemporaryFolder folder;
  convert(digits(), folder / "a", {.format = "mds"});
  EXPECT_NO_THROW(open_mds(folder / "a", {.verify = Verify::open}));
  const std::string shard = folder / "a/shard.00000.mds";
  std::string bytes = read_text_file(shard);
  bytes[bytes.size() / 2] ^= 1;
  write_text_file(shard, bytes);
  EXPECT_THAT(error_of([&] { open_mds(folder / "a", {.verify = Verify::open}); }), HasSubstr("expected the xxh64"));
}

TEST(Compare, KnowsWhatFormatsDoToFields) {
  const at::Tensor three = at::arange(3, 4, at::kLong).squeeze(0), three_float = three.to(at::kFloat);
  const auto sample_of = [](std::vector<Field> fields) {
    Sample sample;
    sample.fields = std::move(fields);
    return sample;
  };
  const auto text = [](std::string_view name, std::string_view bytes) {
    Field field;
    field.name = name;
    field.bytes = io::as_bytes(bytes);
    return field;
  };
  const Sample cls = sample_of({text("cls", "3\n")});
  EXPECT_EQ(difference(cls, sample_of({Field::of("label", three)})), "");
  EXPECT_EQ(difference(sample_of({Field::of("label", three)}), cls), "");
  EXPECT_EQ(difference(sample_of({Field::of("x", three)}), sample_of({Field::of("x", three_float)})), "");
  EXPECT_EQ(difference(sample_of({text("json", "{\"a\": 1}")}), sample_of({text("json", "{\"a\":1}")})), "");
  EXPECT_THAT(difference(cls, sample_of({text("cls", "4")})), HasSubstr("\"cls\" has different content"));
  EXPECT_THAT(difference(cls, sample_of({text("txt", "3")})), HasSubstr("\"cls\" is missing"));
  EXPECT_EQ(difference(sample_of({text("png", a_png())}), sample_of({text("image", a_png())})), "");
  const OutputFormat& pack = find_output_format("pack", "");
  EXPECT_NE(sample_digest(pack, cls, 0), sample_digest(pack, cls, 1));
  EXPECT_NE(sample_digest(pack, cls, 0), sample_digest(pack, sample_of({text("cls", "3")}), 0));
  const OutputFormat& arrays = find_output_format("arrays", "");
  EXPECT_EQ(sample_digest(arrays, cls, 0), sample_digest(arrays, sample_of({Field::of("label", three)}), 0));
}

// What CSV makes of a text that looks like a number.
TEST(Compare, ATextIsWhatItsNumberPrintsAs) {
  const auto compared = [](const Field& written, const Field& read) {
    Sample a, b;
    a.fields.push_back(written);
    b.fields.push_back(read);
    return difference(a, b);
  };
  const auto text = [](std::string_view bytes) { return Field{.name = "x", .bytes = io::as_bytes(bytes)}; };
  const auto number = [](const auto& value, c10::ScalarType dtype) {
    return Field{.name = "x", .bytes = std::as_bytes(std::span(&value, 1)), .is_array = true, .dtype = dtype};
  };
  const double thousand = 1000, half = 1.5, even = 9007199254740992;
  const int64_t five = 5, odd = 9007199254740993;
  const uint64_t odd_too = 9007199254740993;
  EXPECT_EQ(compared(text("5"), number(five, c10::kLong)), "");
  EXPECT_EQ(compared(number(half, c10::kDouble), text("1.5")), "");
  EXPECT_THAT(compared(text("1e3"), number(thousand, c10::kDouble)),
              HasSubstr("\"x\" was the text \"1e3\" and is now the number 1000.0"));
  for (const char* other : {"+5", "05", " 5", "5.0", "5e0"})
    EXPECT_THAT(compared(text(other), number(five, c10::kLong)), HasSubstr("is now the number 5")) << other;
  EXPECT_THAT(compared(text("1.50"), number(half, c10::kDouble)), HasSubstr("is now the number 1.5"));
  EXPECT_THAT(compared(text("1e3"), text("1000.0")), HasSubstr("has different content"));
  EXPECT_EQ(compared(number(odd, c10::kLong), number(odd_too, c10::kUInt64)), "");
  EXPECT_THAT(compared(number(odd, c10::kLong), number(even, c10::kDouble)), HasSubstr("has different content"));
}

// Not its size alone.
TEST(Compare, APictureIsDecoded) {
  const at::Tensor pixels = at::randint(256, {9, 7, 3}, at::kByte), others = pixels.bitwise_xor(1);
  const auto sample_of = [](const Field& field) {
    Sample sample;
    sample.fields.push_back(field);
    return sample;
  };
  const auto file = [](std::string_view name, const io::Bytes& bytes) { return Field{.name = name, .bytes = bytes}; };
  const io::Bytes png = io::encode_png(pixels), again = io::encode_png(pixels, 1), other = io::encode_png(others);
  const io::Bytes jpg = io::encode_jpeg(pixels, 80), other_jpg = io::encode_jpeg(others, 80);
  const Sample raw = sample_of(Field::of("image", pixels)), as_png = sample_of(file("png", png));
  EXPECT_EQ(difference(raw, as_png), "");
  EXPECT_EQ(difference(as_png, raw), "");
  EXPECT_EQ(difference(as_png, sample_of(file("png", again))), "") << "laid out in another way";
  EXPECT_THAT(difference(as_png, sample_of(file("png", other))), HasSubstr("has different content"));
  EXPECT_THAT(difference(raw, sample_of(file("png", other))), HasSubstr("has different content"));
  EXPECT_EQ(difference(as_png, sample_of(file("jpg", jpg)), 80), "");
  EXPECT_EQ(difference(raw, sample_of(file("jpg", jpg)), 80), "");
  EXPECT_THAT(difference(as_png, sample_of(file("jpg", other_jpg)), 80), HasSubstr("has different content"));
  EXPECT_THAT(difference(as_png, sample_of(file("jpg", jpg))), HasSubstr("has different content"))
      << "nobody made it one";
}

}  // namespace bellows::data
