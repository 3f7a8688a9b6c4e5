#include "bellows/data/formats/tfrecord_source.h"

#include <list>
#include <numeric>

#include "bellows/io/records/example.h"
#include "bellows/io/records/tfrecord.h"
#include "tests/interop/records_support.h"

namespace bellows::data {

namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using TfrecordData = RecordsTest;

std::vector<std::string> field_names(const Sample& sample) {
  std::vector<std::string> names;
  for (const Field& field : sample.fields) names.emplace_back(field.name);
  return names;
}

/// A sample that owns what its fields point to.
struct OwnSample {
  void bytes(std::string_view name, std::string content) {
    Field& field = sample.fields.emplace_back();
    field.name = name;
    field.bytes = io::as_bytes(contents.emplace_back(std::move(content)));
  }
  template <class T>
  void array(std::string_view name, c10::ScalarType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    bytes(name, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
    Field& field = sample.fields.back();
    field.is_array = true;
    field.dtype = dtype;
    field.sizes = shapes.emplace_back(std::move(shape));
  }

  std::list<std::string> contents;
  std::list<std::vector<int64_t>> shapes;
  Sample sample;
};

/// One array of each kind, and what else a sample may hold.
void fill_all_kinds(OwnSample& own) {
  own.sample.key = "folder/0001";
  own.bytes("jpg", read_text_file(BELLOWS_SOURCE_DIR "/tests/goldens/io/images/gray.jpg"));
  own.bytes("cls", "3");
  std::vector<uint8_t> pixels(24);
  std::iota(pixels.begin(), pixels.end(), uint8_t{0});
  own.array<uint8_t>("image", c10::kByte, {2, 4, 3}, pixels);
  own.array<int8_t>("int8", c10::kChar, {2}, {-128, 127});
  own.array<int16_t>("int16", c10::kShort, {}, {-300});
  own.array<int32_t>("int32", c10::kInt, {2, 3}, {-1, 2, -3, 4, -5, 6});
  own.array<int64_t>("int64", c10::kLong, {1}, {INT64_MIN});
  own.array<int64_t>("label", c10::kLong, {}, {-7});
  own.array<uint16_t>("uint16", c10::kUInt16, {1, 1}, {65535});
  own.array<uint32_t>("uint32", c10::kUInt32, {2}, {0, UINT32_MAX});
  own.array<uint64_t>("uint64", c10::kUInt64, {2}, {0, UINT64_MAX});
  own.array<uint8_t>("bool", c10::kBool, {3}, {1, 0, 1});
  own.array<uint16_t>("half", c10::kHalf, {2}, {0x3c00, 0x7d01});
  own.array<uint16_t>("bfloat16", c10::kBFloat16, {}, {0x3f80});
  own.array<float>("float32", c10::kFloat, {2, 2}, {1.5F, -0.0F, INFINITY, 1e-45F});
  own.array<float>("list", c10::kFloat, {3}, {1, 2, 3});
  own.array<double>("float64", c10::kDouble, {2}, {0.1, -1e300});
  own.array<double>("complex", c10::kComplexDouble, {1}, {1.0, 2.0});
  own.array<int32_t>("no rows", c10::kInt, {0, 3}, {});
  own.array<uint8_t>("no bytes", c10::kByte, {2, 0}, {});
}

void write_samples(const std::string& path, const std::vector<const Sample*>& samples,
                   const TfrecordSinkOptions& options = {}) {
  const auto sink = tfrecord_sink(path, options);
  for (const Sample* sample : samples) sink->write(*sample);
  sink->close();
}

/// The samples that the golden's features are.
void fill_golden(const json& features, OwnSample& own) {
  for (const json& feature : features) {
    const std::string name = own.contents.emplace_back(feature[0]);
    const std::string_view kept = own.contents.back();
    const json& values = feature[2];
    const std::vector<int64_t> shape =
        values.size() == 1 ? std::vector<int64_t>{} : std::vector<int64_t>{static_cast<int64_t>(values.size())};
    if (feature[1] == "bytes") {
      own.bytes(kept, from_hex(values.at(0)));
    } else if (feature[1] == "floats") {
      own.array<uint32_t>(kept, c10::kFloat, shape, values.get<std::vector<uint32_t>>());
    } else {
      own.array<int64_t>(kept, c10::kLong, shape, values.get<std::vector<int64_t>>());
    }
  }
}

}  // namespace

TEST_F(TfrecordData, FeaturesBecomeFields) {
  const auto source = open_tfrecord({golden("any_order.tfrecord")});
  ASSERT_EQ(source->size(), 8);
  EXPECT_THAT(source->block_starts(), ElementsAre(0));
  const Sample jpeg = source->read(0);
  EXPECT_THAT(field_names(jpeg), ElementsAre("label", "jpg", "image/format"));
  EXPECT_EQ(scalar<int64_t>(jpeg.find("label")), 3);
  EXPECT_EQ(jpeg.find("label")->dtype, c10::kLong);
  EXPECT_EQ(io::as_text(jpeg.find("jpg")->bytes),
            read_text_file(BELLOWS_SOURCE_DIR "/tests/goldens/io/images/gray.jpg"));
  const std::string file = read_text_file(golden("any_order.tfrecord"));
  for (const Field& field : jpeg.fields) {
    EXPECT_TRUE(field.is_array || file.substr(field.offset, field.bytes.size()) == io::as_text(field.bytes));
  }
  EXPECT_THAT(field_names(source->read(1)), ElementsAre("label", "png"));
  const Sample numbers = source->read(2);
  EXPECT_THAT(values<int64_t>(numbers.find("numbers")),
              ElementsAre(0, 1, -1, 127, 128, 300, -300, int64_t{1} << 31, INT64_MAX, INT64_MIN));
  EXPECT_EQ(numbers.find("floats")->sizes, c10::IntArrayRef({8}));
  const Sample empty = source->read(3);
  EXPECT_THAT(field_names(empty), ElementsAre("no floats", "no ints", "no text"));
  EXPECT_EQ(empty.find("no floats")->sizes, c10::IntArrayRef({0}));
  const Sample many = source->read(4);
  EXPECT_THAT(field_names(many), ElementsAre("", "many.0", "many.1", "many.2", "ä→🔥"));
  EXPECT_EQ(io::as_text(many.find("many.2")->bytes), "three");
  EXPECT_TRUE(source->read(5).fields.empty());
  EXPECT_EQ(source->read(6).find("long")->bytes.size(), 20000U);
  EXPECT_EQ(scalar<float>(source->read(7).find("one")), 0.5F);
}

TEST_F(TfrecordData, CompressedFilesHoldTheSame) {
  const auto expected = contents(*open_tfrecord({golden("examples.tfrecord")}));
  for (const char* name : {"any_order.tfrecord", "examples.tfrecord.gz", "examples.tfrecord.zz"})
    EXPECT_EQ(contents(*open_tfrecord({golden(name)})), expected) << name;
}

TEST_F(TfrecordData, CompressedFilesAreKeptWhileThereIsRoom) {
  const std::vector<std::string> files{copy("examples.tfrecord.gz", "a.gz"), copy("examples.tfrecord.zz", "b.zz")};
  const SourcePtr kept = open_tfrecord(files), dropped = open_tfrecord(files, {.unpacked_bytes = 1});
  const auto expected = contents(*kept);
  EXPECT_EQ(contents(*dropped), expected);
  for (const int64_t i : {0, 8, 1, 15}) EXPECT_EQ(content(dropped->read(i)), content(kept->read(i)));
  for (const std::string& file : files) {  // in place: what is mapped changes, too
    std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
    out << std::string(std::filesystem::file_size(file), 'x');
  }
  EXPECT_EQ(contents(*kept), expected);
  EXPECT_THAT(value_error([&] { dropped->read(0); }), ::testing::AllOf(HasSubstr("sample (id 0)"), HasSubstr(files[0]),
                                                                       HasSubstr("was compressed when it was opened")));
  for (const std::string& file : files) std::filesystem::remove(file);
}

TEST_F(TfrecordData, SeveralFilesAndEmptyOnes) {
  const std::string one = golden("examples.tfrecord"), none = golden("empty.tfrecord");
  const auto source = open_tfrecord({none, one, none, golden("examples.tfrecord.gz"), none});
  EXPECT_EQ(source->size(), 16);
  EXPECT_THAT(source->block_starts(), ElementsAre(0, 8));
  EXPECT_EQ(source->read(7).file, one);
  EXPECT_EQ(content(source->read(8)), content(source->read(0)));
  EXPECT_EQ(open_tfrecord({none})->size(), 0);
  EXPECT_THAT(open_tfrecord({none})->block_starts(), ElementsAre());
  EXPECT_THAT(value_error([] { open_tfrecord({}); }), HasSubstr("at least one file"));
}

TEST_F(TfrecordData, SinkWritesTheBytesOfTheOriginal) {
  const json examples = golden_json("examples.json");
  std::list<OwnSample> own;
  std::vector<const Sample*> samples;
  for (const json& features : examples) {
    own.emplace_back();
    json single = json::array();  // several byte strings are no field
    for (const json& feature : features)
      if (feature[1] != "bytes" || feature[2].size() == 1) single.push_back(feature);
    fill_golden(single, own.back());
    std::ranges::reverse(own.back().sample.fields);  // their order does not matter
    samples.push_back(&own.back().sample);
  }
  write_samples(path("most.tfrecord"), samples);
  const std::string file = read_text_file(golden("examples.tfrecord")), written = read_text_file(path("most.tfrecord"));
  const auto records = io::scan_tfrecord(file, "golden"), ours = io::scan_tfrecord(written, "ours");
  ASSERT_EQ(records.size(), ours.size());
  for (const size_t i : {0, 1, 2, 5, 6, 7})
    EXPECT_EQ(io::tfrecord_at(file, records[i].offset, "golden"), io::tfrecord_at(written, ours[i].offset, "ours"))
        << i;
  EXPECT_EQ(read_text_file(path("most.tfindex")), io::format_tfrecord_index(ours));
}

TEST_F(TfrecordData, ArraysOfAllKindsComeBack) {
  OwnSample own;
  fill_all_kinds(own);
  write_samples(path("arrays.tfrecord"), {&own.sample});
  const auto source = open_tfrecord({path("arrays.tfrecord")});
  std::ranges::sort(own.sample.fields, {}, &Field::name);
  EXPECT_EQ(content(source->read(0)), content(own.sample));
  EXPECT_EQ(source->read(0).key, "folder/0001");
  write_samples(path("again.tfrecord"), {&own.sample});
  EXPECT_EQ(read_text_file(path("again.tfrecord")), read_text_file(path("arrays.tfrecord")));
}

TEST_F(TfrecordData, NumbersOfPlainListsNeedNoNote) {
  OwnSample own;
  own.array<int64_t>("a", c10::kLong, {}, {1});
  own.array<float>("b", c10::kFloat, {2}, {1, 2});
  own.array<float>("c", c10::kFloat, {0}, {});
  write_samples(path("plain.tfrecord"), {&own.sample});
  const std::string file = read_text_file(path("plain.tfrecord"));
  EXPECT_EQ(file.find("bellows"), std::string::npos);
  EXPECT_EQ(contents(*open_tfrecord({path("plain.tfrecord")})), std::vector{content(own.sample)});
}

TEST_F(TfrecordData, FieldsAndFeaturesCanBeRenamed) {
  OwnSample own;
  own.bytes("jpg", "\xff\xd8\xff...");
  own.array<int64_t>("label", c10::kLong, {}, {4});
  own.array<int32_t>("box", c10::kInt, {4}, {1, 2, 3, 4});
  write_samples(path("r.tfrecord"), {&own.sample},
                {.features = {{"jpg", "image/encoded"}, {"label", "image/class/label"}, {"box", "object/box"}}});
  const std::string file = path("r.tfrecord");
  EXPECT_THAT(field_names(open_tfrecord({file})->read(0)), ElementsAre("label", "jpg", "object/box"));
  const auto renamed =
      open_tfrecord({file}, {.fields = {{"image/encoded", ""}, {"object/box", "box"}, {"image/class/label", "y"}}});
  const Sample sample = renamed->read(0);
  EXPECT_THAT(field_names(sample), ElementsAre("y", "box"));
  EXPECT_EQ(sample.find("box")->dtype, c10::kInt) << "also under another name";
  const auto twice = open_tfrecord({file}, {.fields = {{"object/box", "label"}}});
  EXPECT_THAT(value_error([&] { twice->read(0); }), HasSubstr("two features would become the field \"label\""));
}

TEST_F(TfrecordData, WellKnownNamesYieldToFeaturesThatHaveThem) {
  OwnSample own;
  own.bytes("image/encoded", "\x89PNG\r\n...");
  own.bytes("png", "other");
  own.array<int64_t>("image/class/label", c10::kLong, {}, {4});
  own.array<int64_t>("label", c10::kLong, {}, {5});
  write_samples(path("n.tfrecord"), {&own.sample});
  EXPECT_THAT(field_names(open_tfrecord({path("n.tfrecord")})->read(0)),
              ElementsAre("image/class/label", "image/encoded", "label", "png"));
}

TEST_F(TfrecordData, IndexIsReadWrittenAndHeldAgainstTheFile) {
  const std::string file = copy("examples.tfrecord", "x.tfrecord"), index = path("x.tfindex");
  const auto expected = contents(*open_tfrecord({file}));
  EXPECT_FALSE(std::filesystem::exists(index)) << "only when asked for";
  open_tfrecord({file}, {.save_index = true});
  EXPECT_EQ(read_text_file(index), read_text_file(golden("examples.tfindex")));
  EXPECT_EQ(contents(*open_tfrecord({file})), expected);
  put(index, "0 17\n");
  EXPECT_THAT(value_error([&] { open_tfrecord({file}); }), HasSubstr(index + ": the index ends at byte 17 of " + file));
  std::filesystem::remove(index);
  EXPECT_EQ(contents(*open_tfrecord({file}, {.indexes = {golden("examples.tfindex")}})), expected);
  EXPECT_THAT(value_error([&] { open_tfrecord({file}, {.indexes = {path("none")}}); }), HasSubstr("No such file"));
  EXPECT_THAT(value_error([&] { open_tfrecord({file}, {.indexes = {"a", "b"}}); }), HasSubstr("expected 1 indexes"));
  EXPECT_EQ(tfrecord_index_path("a/train-00001-of-00002"), "a/train-00001-of-00002.tfindex");
}

TEST_F(TfrecordData, AFileThatBecameAnotherIsNoticedByItsIndex) {
  OwnSample own;
  own.bytes("text", "abc");
  write_samples(path("o.tfrecord"), {&own.sample, &own.sample});
  copy("examples.tfrecord", "o.tfrecord");
  EXPECT_THAT(value_error([&] { open_tfrecord({path("o.tfrecord")}); }),
              HasSubstr("The index belongs to another file"));
}

TEST_F(TfrecordData, LargeRecordsAreRefused) {
  const std::string message =
      value_error([] { open_tfrecord({golden("examples.tfrecord")}, {.max_record_bytes = 10'000}); });
  EXPECT_THAT(message, HasSubstr("has 20026 bytes, but the limit is 10000"));
}

TEST_F(TfrecordData, EveryFlippedBitIsNoticed) {
  OwnSample own, other;
  own.bytes("cls", "3");
  own.array<int32_t>("box", c10::kInt, {1, 2}, {-1, 300});
  other.array<float>("x", c10::kFloat, {}, {0.5F});
  write_samples(path("small.tfrecord"), {&own.sample, &other.sample});
  const std::string file = read_text_file(path("small.tfrecord"));
  for_each_flip(file, [&](const std::string& flipped, size_t bit) {
    put(path("flip"), flipped);
    EXPECT_THROW(contents(*open_tfrecord({path("flip")})), c10::ValueError) << "bit " << bit;
  });
  const auto records = io::scan_tfrecord(file, "x");
  for (size_t length = 0; length < file.size(); ++length) {
    put(path("cut"), std::string_view(file).substr(0, length));
    if (length == 0 || length == records[1].offset) {
      EXPECT_EQ(open_tfrecord({path("cut")})->size(), length == 0 ? 0 : 1);
    } else {
      EXPECT_THROW(open_tfrecord({path("cut")}), c10::ValueError) << length;
    }
  }
  std::filesystem::copy_file(path("small.tfindex"), path("cut.tfindex"));
  put(path("cut.tfrecord"), std::string_view(file).substr(0, records[1].offset));
  EXPECT_THROW(open_tfrecord({path("cut.tfrecord")}), c10::ValueError) << "the index tells that a record is missing";
}

TEST_F(TfrecordData, BadSamplesAreNamed) {
  std::string file;
  io::append_tfrecord(file, "");
  io::append_tfrecord(file, "no message");
  put(path("bad.tfrecord"), file);
  const auto source = open_tfrecord({path("bad.tfrecord")});
  EXPECT_TRUE(source->read(0).fields.empty());
  EXPECT_THAT(value_error([&] { source->read(1); }), HasSubstr("sample (id 1), record at byte 16 of " +
                                                               path("bad.tfrecord") + ": tf.train.Example: expected"));
  OwnSample own;
  own.bytes("a", "");
  own.bytes("a", "");
  EXPECT_THAT(value_error([&] { write_samples(path("two.tfrecord"), {&own.sample}); }),
              HasSubstr("two features have the name \"a\""));
  EXPECT_FALSE(std::filesystem::exists(path("two.tfrecord")));
}

TEST_F(TfrecordData, NotesThatDoNotFitAreRefused) {
  const auto message = [&](const std::string& note) {
    io::ExampleWriter writer;
    const std::vector<int64_t> numbers{1, 2, 300, 4};
    writer.add_int64s("x", numbers);
    const io::ByteSpan bytes = io::as_bytes(note);
    writer.add_bytes("bellows/arrays", std::span(&bytes, 1));
    std::string file;
    io::append_tfrecord(file, writer.take());
    put(path("note.tfrecord"), file);
    return value_error([&] { open_tfrecord({path("note.tfrecord")})->read(0); });
  };
  for (const char* note : {"", "int32", "int32[4]x", "int33[4] x", "int32[-4] x", "int32[4,] x", "int32[,] x",
                           "int32[4.] x", "int64[4294967296,4294967296] x", "]int32[ x"})
    EXPECT_THAT(message(note), HasSubstr("expected DTYPE[SIZES] NAME")) << note;
  EXPECT_THAT(message("int32[5] x"), HasSubstr("has different values than \"bellows/arrays\" declares: 5 of Int"));
  EXPECT_THAT(message("int32[] x"), HasSubstr("has different values"));
  EXPECT_THAT(message("float32[4] x"), HasSubstr("has different values"));
  EXPECT_THAT(message("uint8[4] x"), HasSubstr("has different values"));
  EXPECT_THAT(message("int8[2,2] x"), HasSubstr("expected numbers that fit Char, found 300"));
  EXPECT_THAT(message("bool[2,2] x"), HasSubstr("expected numbers that fit Bool, found 2"));
}

TEST_F(TfrecordData, AFileThatIsCutMeanwhileIsNoticed) {
  const std::string file = copy("examples.tfrecord", "cut.tfrecord");
  const auto source = open_tfrecord({file});
  std::filesystem::resize_file(file, 100);
  EXPECT_THAT(value_error([&] { source->read(7); }), HasSubstr(file + " was truncated while it was read"));
}

}  // namespace bellows::data
