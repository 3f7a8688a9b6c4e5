#include "bellows/io/records/tfrecord.h"

#include "bellows/io/records/example.h"
#include "tests/interop/records_support.h"

namespace bellows::data {

namespace {

using io::ExampleFeature;
using io::ExampleReader;
using nlohmann::json;
using Tfrecord = RecordsTest;

json values_of(const ExampleReader& example, const ExampleFeature& feature) {
  json list = json::array();
  if (feature.kind == ExampleFeature::Kind::bytes) {
    for (const io::ByteSpan value : example.pieces(feature)) {
      std::string hex;
      for (const std::byte b : value)
        hex += {"0123456789abcdef"[std::to_integer<int>(b) >> 4], "0123456789abcdef"[std::to_integer<int>(b) & 15]};
      list.push_back(hex);
    }
  } else if (feature.kind == ExampleFeature::Kind::floats) {
    std::vector<uint32_t> bits(feature.count);
    example.copy_floats(feature, reinterpret_cast<std::byte*>(bits.data()));
    list = bits;
  } else if (feature.kind == ExampleFeature::Kind::int64s) {
    std::vector<int64_t> numbers(feature.count);
    example.copy_int64s(feature, reinterpret_cast<std::byte*>(numbers.data()));
    list = numbers;
  }
  return list;
}

/// As tools/goldens/records.py describes it: [name, kind, values] for each feature.
json described(std::string_view message) {
  constexpr const char* kinds[] = {"none", "bytes", "floats", "int64s"};
  ExampleReader example;
  example.parse(io::as_bytes(message));
  json list = json::array();
  for (const ExampleFeature& feature : example.features()) {
    const json values = values_of(example, feature);
    EXPECT_EQ(values.size(), feature.count);
    list.push_back({std::string(feature.name), kinds[static_cast<int>(feature.kind)], values});
  }
  return list;
}

std::string message_of(const json& features) {
  io::ExampleWriter writer;
  for (const json& feature : features) {
    const std::string name = feature[0];
    if (feature[1] == "bytes") {
      std::vector<std::string> texts;
      for (const json& hex : feature[2]) texts.push_back(from_hex(hex));
      std::vector<io::ByteSpan> spans;
      spans.reserve(texts.size());
      for (const std::string& text : texts) spans.push_back(io::as_bytes(text));
      writer.add_bytes(name, spans);
    } else if (feature[1] == "floats") {
      std::vector<float> floats;
      for (const uint32_t bits : feature[2]) floats.push_back(std::bit_cast<float>(bits));
      writer.add_floats(name, floats);
    } else {
      writer.add_int64s(name, feature[2].get<std::vector<int64_t>>());
    }
  }
  return writer.take();
}

json described_file(std::string_view file) {
  json list = json::array();
  io::TfrecordReader reader(file, "golden");
  while (const auto record = reader.next()) list.push_back(described(*record));
  return list;
}

}  // namespace

TEST_F(Tfrecord, UnderstandsEveryMessageAsProtobufDoes) {
  size_t refused = 0, understood = 0;
  for (const json& message : golden_json("messages.json")) {
    // A copy of just its size: AddressSanitizer sees what reads beyond.
    const std::string text = from_hex(message[0]);
    const std::vector<char> bytes(text.begin(), text.end());
    const std::string_view view(bytes.data(), bytes.size());
    if (message[1].is_null()) {
      EXPECT_THROW(described(view), c10::ValueError) << message;
      ++refused;
    } else {
      EXPECT_EQ(described(view), message[1]) << message;
      ++understood;
    }
  }
  EXPECT_GT(refused, 100U);
  EXPECT_GT(understood, 100U);
}

TEST_F(Tfrecord, ReadsFilesOfTheOriginal) {
  const json expected = golden_json("examples.json");
  for (const char* name : {"any_order.tfrecord", "examples.tfrecord"})
    EXPECT_EQ(described_file(read_text_file(golden(name))), expected) << name;
  EXPECT_EQ(described_file(read_text_file(golden("empty.tfrecord"))), json::array());
  for (const char* name : {"examples.tfrecord.gz", "examples.tfrecord.zz"}) {
    const std::string packed = read_text_file(golden(name));
    const auto file = io::unpack_tfrecord(io::as_bytes(packed), name);
    ASSERT_TRUE(file) << name;
    EXPECT_EQ(described_file(io::as_text(*file)), expected) << name;
  }
  const std::string plain = read_text_file(golden("examples.tfrecord"));
  EXPECT_FALSE(io::unpack_tfrecord(io::as_bytes(plain), "plain"));
}

TEST_F(Tfrecord, WritesTheBytesOfTheOriginal) {
  std::string all, single;
  for (const json& example : golden_json("examples.json")) {
    io::append_tfrecord(all, message_of(example));
    for (const json& feature : example) io::append_tfrecord(single, message_of(json::array({feature})));
  }
  put(path("examples.tfrecord"), all);
  put(path("examples.tfindex"), io::format_tfrecord_index(io::scan_tfrecord(all, "all")));
  EXPECT_TRUE(all == read_text_file(golden("examples.tfrecord"))) << "the files differ";
  EXPECT_TRUE(single == read_text_file(golden("single.tfrecord"))) << "the files differ";
  EXPECT_EQ(read_text_file(path("examples.tfindex")), read_text_file(golden("examples.tfindex")));
}

TEST_F(Tfrecord, ALengthThatLooksLikeACompressedFileIsALength) {
  for (const size_t size : {0x178U, 0x8b1fU, 0x9c78U, 0x5a42U}) {  // zlib, gzip, zlib, "BZ"
    std::string file;
    io::append_tfrecord(file, std::string(size, 'x'));
    EXPECT_FALSE(io::unpack_tfrecord(io::as_bytes(file), "x")) << size;
  }
}

TEST_F(Tfrecord, WriterRefusesTwoFeaturesOfOneName) {
  io::ExampleWriter writer;
  writer.add_int64s("a", {});
  writer.add_floats("a", {});
  EXPECT_THAT(value_error([&] { writer.take(); }), testing::HasSubstr("two features have the name \"a\""));
  io::ExampleWriter other;
  other.add_int64s("\xff", {});
  EXPECT_THAT(value_error([&] { other.take(); }), testing::HasSubstr("UTF-8"));
}

TEST_F(Tfrecord, ManyFeaturesTakeNeitherForeverNorAllMemory) {
  // Two bytes state a feature without name and value.
  std::string entries;
  for (int i = 0; i < 300'000; ++i) entries += std::string("\x0a\x00", 2);
  const auto message = [](const std::string& features) {
    std::string size;
    for (uint64_t n = features.size(); n > 0; n >>= 7) size += static_cast<char>((n & 127) | (n >= 128 ? 128 : 0));
    return "\x0a" + size + features;
  };
  EXPECT_EQ(described(message(entries)).size(), 1U);
  EXPECT_THAT(value_error([&] { described(message(entries + entries + entries + entries)); }),
              testing::HasSubstr("at most 1,048,576 features"));
}

TEST_F(Tfrecord, IndexHasToFitItsFile) {
  using testing::HasSubstr;
  const std::string file = read_text_file(golden("examples.tfrecord"));
  const std::string index = read_text_file(golden("examples.tfindex"));
  const auto parse = [&](const std::string& text) { return io::parse_tfrecord_index(text, file, "x.tfindex", "x"); };
  EXPECT_EQ(parse(index), io::scan_tfrecord(file, "x"));
  EXPECT_EQ(parse(index.substr(0, index.size() - 1)), io::scan_tfrecord(file, "x")) << "no newline at the end";
  EXPECT_THAT(value_error([&] { parse("0 10\n"); }), HasSubstr("x.tfindex, line 1: expected a record at byte 0 of x"));
  EXPECT_THAT(value_error([&] { parse("0 99999999999999999999\n"); }), HasSubstr("expected \"OFFSET SIZE\""));
  EXPECT_THAT(value_error([&] { parse("0\t1\n"); }), HasSubstr("line 1: expected \"OFFSET SIZE\", found \"0\\x091\""));
  EXPECT_THAT(value_error([&] { parse(index + "\n"); }), HasSubstr("expected \"OFFSET SIZE\", found \"\""));
  EXPECT_THAT(value_error([&] { parse(index.substr(0, index.rfind('\n', index.size() - 2) + 1)); }),
              HasSubstr("ends at byte"));
  EXPECT_THAT(value_error([&] { parse(c10::str("0 ", file.size(), "\n")); }),
              HasSubstr(c10::str("no record of ", file.size(), " bytes at byte 0")));
  EXPECT_THAT(value_error([&] { parse(c10::str("0 18446744073709551615\n")); }),
              HasSubstr("The index belongs to another file"));
}

TEST_F(Tfrecord, ErrorsNameThePlace) {
  using testing::HasSubstr;
  std::string file;
  io::append_tfrecord(file, "first");
  io::append_tfrecord(file, "second");
  EXPECT_EQ(io::tfrecord_at(file, 21, "x"), "second");
  EXPECT_THAT(value_error([&] { io::tfrecord_at(file, 20, "x"); }), HasSubstr("x: expected a record at byte 20"));
  EXPECT_THAT(value_error([&] { io::tfrecord_at(file, 1000, "x"); }), HasSubstr("x: expected a record at byte 1000"));
  EXPECT_THAT(value_error([&] { io::tfrecord_at(file, ~uint64_t{0}, "x"); }), HasSubstr("expected a record"));
  EXPECT_THAT(value_error([&] { io::scan_tfrecord(file.substr(0, 30), "x"); }),
              HasSubstr("x: the record at byte 21 exceeds the end of the file (30 bytes)"));
  EXPECT_THAT(value_error([&] { io::scan_tfrecord("<html>not found</html>", "x"); }), HasSubstr("an HTML page"));
}

}  // namespace bellows::data
