#include "bellows/io/records/recordio.h"

#include <random>

#include "bellows/data/formats/recordio_source.h"
#include "tests/interop/records_support.h"

namespace bellows::data {

namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Recordio = RecordsTest;

/// A record as tools/goldens/records.py describes it.
struct GoldenRecord {
  explicit GoldenRecord(const json& description)
      : content(from_hex(description["content"])), label_bits(description["labels"].get<std::vector<uint32_t>>()) {
    image.flag = description["flag"];
    image.id = description["id"];
    image.id2 = description["id2"];
    if (image.flag == 0) image.label = std::bit_cast<float>(label_bits.at(0));
  }
  std::string bytes() const {
    io::ImageRecord record = image;
    record.content = io::as_bytes(content);
    if (record.flag > 0) record.labels = std::as_bytes(std::span(label_bits));
    return io::format_image_record(record);
  }

  std::string content;
  std::vector<uint32_t> label_bits;
  io::ImageRecord image;
};

std::vector<GoldenRecord> golden_records(const std::string& name) {
  std::vector<GoldenRecord> records;
  const json files = golden_json("records.json");
  for (const json& description : files[name]) records.emplace_back(description);
  return records;
}

std::vector<std::string> all_records(std::string_view file) {
  std::vector<std::string> records;
  for (const uint64_t offset : io::scan_recordio(io::as_bytes(file), "memory")) {
    io::Bytes joined;
    records.emplace_back(io::as_text(io::recordio_at(io::as_bytes(file), offset, "memory", joined).data));
  }
  return records;
}

std::string labelled(const std::string& content, int64_t label, const std::string& path) {
  Sample sample;
  Field& file = sample.fields.emplace_back();
  file.name = "jpg";
  file.bytes = io::as_bytes(content);
  Field& number = sample.fields.emplace_back();
  number.name = "label";
  number.is_array = true;
  number.dtype = c10::kLong;
  number.bytes = std::as_bytes(std::span(&label, 1));
  const auto sink = recordio_sink(path);
  sink->write(sample);
  sink->close();
  return path;
}

}  // namespace

TEST_F(Recordio, ReadsAndWritesTheBytesOfTheOriginal) {
  for (const char* name : {"images", "labels", "magic"}) {
    const std::string file = read_text_file(golden(std::string(name) + ".rec"));
    std::string written, index;
    std::vector<std::string> expected;
    for (const GoldenRecord& record : golden_records(name)) {
      index += c10::str(expected.size(), "\t", written.size(), "\n");
      expected.push_back(record.bytes());
      io::append_recordio(written, io::as_bytes(expected.back()));
    }
    EXPECT_EQ(all_records(file), expected) << name;
    EXPECT_TRUE(written == file) << name;
    EXPECT_EQ(index, read_text_file(golden(std::string(name) + ".idx")));
    EXPECT_EQ(io::parse_recordio_index(index, name), io::scan_recordio(io::as_bytes(file), name));
  }
}

TEST_F(Recordio, RecordsOfMagicNumbersComeBack) {
  std::mt19937_64 random(1);
  std::string file;
  std::vector<std::string> expected;
  for (int i = 0; i < 2000; ++i) {
    std::string& record = expected.emplace_back();
    for (uint64_t piece = random() % 8; piece > 0; --piece) {
      switch (random() % 4) {
        case 0:
          record += static_cast<char>(random());
          break;
        case 1:
          record += "\xce\xd7\x23\x0a";
          break;
        default:
          record += "\x0a\x23\xd7\xce";
      }
    }
    io::append_recordio(file, io::as_bytes(record));
  }
  EXPECT_EQ(all_records(file), expected);
  EXPECT_EQ(file.size() % 4, 0U);
}

TEST_F(Recordio, SourceHandsOutPicturesAndLabels) {
  const auto images = open_recordio({golden("images.rec")});
  ASSERT_EQ(images->size(), 4);
  const std::vector<GoldenRecord> expected = golden_records("images");
  const char* names[] = {"jpg", "png", "data", "jpg"};
  const int64_t labels[] = {3, -1, 1 << 24, 0};
  const std::string file = read_text_file(golden("images.rec"));
  for (int64_t i = 0; i < 4; ++i) {
    const Sample sample = images->read(i);
    EXPECT_EQ(sample.id, i);
    ASSERT_EQ(sample.fields.size(), 2U);
    EXPECT_EQ(sample.fields[0].name, names[i]);
    EXPECT_EQ(io::as_text(sample.fields[0].bytes), expected[static_cast<size_t>(i)].content);
    EXPECT_EQ(sample.find("label")->dtype, c10::kLong);
    EXPECT_EQ(scalar<int64_t>(sample.find("label")), labels[i]);
    EXPECT_EQ(file.substr(sample.fields[0].offset, 3), "\x0a\x23\xd7");
  }
}

TEST_F(Recordio, LabelsThatAreNotAllWholeStayFloats) {
  const auto source = open_recordio({golden("labels.rec")});
  EXPECT_EQ(scalar<float>(source->read(0).find("label")), 0.5F);
  EXPECT_THAT(values<float>(source->read(1).find("label")), ElementsAre(1.0F, 2.5F));
  EXPECT_THAT(values<float>(source->read(2).find("label")), ElementsAre(7.0F));
  EXPECT_EQ(source->read(2).find("label")->sizes, c10::IntArrayRef({1}));
  EXPECT_TRUE(std::isnan(scalar<float>(source->read(3).find("label"))));
  EXPECT_EQ(source->read(4).find("label")->sizes, c10::IntArrayRef({9}));
  const auto both = open_recordio({golden("images.rec"), golden("labels.rec")});
  EXPECT_EQ(scalar<float>(both->read(0).find("label")), 3.0F);
  EXPECT_EQ(scalar<float>(both->read(4).find("label")), 0.5F);
  EXPECT_THAT(both->block_starts(), ElementsAre(0, 4));
}

TEST_F(Recordio, SplitRecordsAreJoinedInTheSample) {
  const auto source = open_recordio({golden("magic.rec")});
  const std::vector<GoldenRecord> expected = golden_records("magic");
  Sample sample;  // one for all: its memory is used again
  for (int64_t i = 0; i < source->size(); ++i) {
    const GoldenRecord& record = expected[static_cast<size_t>(i)];
    source->read(i, sample);
    EXPECT_EQ(io::as_text(sample.find("data")->bytes), record.content) << i;
    EXPECT_EQ(scalar<int64_t>(sample.find("label")), static_cast<int64_t>(record.image.label)) << i;
  }
}

TEST_F(Recordio, SamplesComeInTheOrderOfTheIndex) {
  copy("images.rec", "r.rec");
  copy("reversed.idx", "r.idx");
  auto expected = contents(*open_recordio({golden("images.rec")}));
  std::ranges::reverse(expected);
  EXPECT_EQ(contents(*open_recordio({path("r.rec")})), expected);
  std::filesystem::remove(path("r.idx"));
  std::ranges::reverse(expected);
  EXPECT_EQ(contents(*open_recordio({path("r.rec")})), expected);
}

TEST_F(Recordio, AnIndexHasToNameEachRecordOnce) {
  copy("images.rec", "i.rec");
  const auto message = [&](const std::string& index) {
    put(path("i.idx"), index);
    return value_error([&] { open_recordio({path("i.rec")}); });
  };
  const std::string index = read_text_file(golden("images.idx"));
  const size_t second = index.find('\n') + 1;
  EXPECT_THAT(message(index.substr(second)), HasSubstr("i.idx: the index does not list the record at byte 0"));
  EXPECT_THAT(message(index.substr(0, index.rfind('\n', index.size() - 2) + 1)),
              HasSubstr("does not list the record at"));
  EXPECT_THAT(message(index + index.substr(0, second)), HasSubstr("lists a record at byte 0"));
  EXPECT_THAT(message(index + "9\t4\n"), HasSubstr("lists a record at byte 4"));
  EXPECT_THAT(message(index + "9\t99999\n"), HasSubstr("lists a record at byte 99999"));
  EXPECT_THAT(message("0 0\n"), HasSubstr("i.idx, line 1: expected a key, a tab and an offset, found \"0 0\""));
  EXPECT_THAT(message(index + "\n"), HasSubstr("i.idx, line 5"));
  EXPECT_THAT(message(""), HasSubstr("does not list the record at byte 0"));
}

TEST_F(Recordio, OursAreThoseOfTheOriginal) {
  for (const char* name : {"images", "labels", "magic"}) {
    const auto source = open_recordio({golden(std::string(name) + ".rec")});
    const auto sink = recordio_sink(path(std::string(name) + ".rec"));
    for (int64_t i = 0; i < source->size(); ++i) sink->write(source->read(i));
    sink->close();
    EXPECT_EQ(contents(*open_recordio({path(std::string(name) + ".rec")})), contents(*source)) << name;
    std::string index;  // the golden's ids are others, one of which splits its record
    for (const uint64_t offset :
         io::scan_recordio(io::as_bytes(read_text_file(path(std::string(name) + ".rec"))), name))
      index += c10::str(std::ranges::count(index, '\n'), "\t", offset, "\n");
    EXPECT_EQ(read_text_file(path(std::string(name) + ".idx")), index);
  }
}

TEST_F(Recordio, SinkTakesTextLabelsAndRefusesWhatHasNoPlace) {
  const std::string file = path("s.rec");
  Sample sample;
  const auto add = [&](std::string_view name, std::string_view text) {
    sample.fields.emplace_back().name = name;
    sample.fields.back().bytes = io::as_bytes(text);
  };
  const auto message = [&] { return value_error([&] { recordio_sink(file)->write(sample); }); };
  add("png", "a picture");
  EXPECT_THAT(message(), HasSubstr("RecordIO needs a label"));
  add("cls", " 17\n");
  {
    const auto sink = recordio_sink(file);
    sink->write(sample);
    sink->close();
  }
  EXPECT_EQ(scalar<int64_t>(open_recordio({file})->read(0).find("label")), 17);
  add("json", "{}");
  EXPECT_THAT(message(), HasSubstr("cannot store \"json\" in addition to \"png\""));
  sample.fields.pop_back();
  sample.fields.back().bytes = io::as_bytes("cat");
  EXPECT_THAT(message(), HasSubstr("expected an integer label"));
  EXPECT_THAT(value_error([&] { labelled("x", (1 << 24) + 1, file); }), HasSubstr("cannot exactly represent 16777217"));
  EXPECT_THAT(value_error([&] { labelled("x", INT64_MAX, file); }),
              HasSubstr("cannot exactly represent 9223372036854775807"));
  EXPECT_EQ(scalar<int64_t>(open_recordio({labelled("x", -(1 << 24), file)})->read(0).find("label")), -(1 << 24));
}

TEST_F(Recordio, ErrorsNameThePlace) {
  const auto message = [&](const std::string& bytes) {
    put(path("e.rec"), bytes);
    return value_error([&] { open_recordio({path("e.rec")}); });
  };
  std::string file = read_text_file(golden("images.rec"));
  EXPECT_THAT(message("<html>"), HasSubstr("expected a record header of 8 bytes at byte 0, but the file has 6"));
  EXPECT_THAT(message("<html>.........."), HasSubstr("expected a RecordIO record at byte 0, found an HTML page"));
  EXPECT_THAT(message(file.substr(0, 100)),
              HasSubstr("e.rec: the record at byte 0 (789 bytes) exceeds the end of the file"));
  std::string small;
  io::append_recordio(small, io::as_bytes("no image header"));
  EXPECT_THAT(message(small),
              HasSubstr("the record at byte 0 of " + path("e.rec") + ": expected a record of an image"));
  std::string many;
  io::append_recordio(many, io::as_bytes("\xff\xff\xff\xff" + std::string(20, '\0')));
  EXPECT_THAT(message(many), HasSubstr("expected 4294967295 labels of 4 bytes, found 0 bytes"));
  const std::string magic = read_text_file(golden("magic.rec"));
  EXPECT_THAT(message(magic.substr(32)),
              HasSubstr("expected the beginning of a record, found a later part of a record"));
  EXPECT_THAT(message(magic.substr(0, 32) + file),
              HasSubstr("expected the next part of a split record, found the beg"));
}

TEST_F(Recordio, EveryFlipGivesAnErrorOrASampleAndEveryCutIsSeen) {
  const std::string file = read_text_file(golden("magic.rec")).substr(0, 160);  // three records
  put(path("f.rec"), file);
  const auto expected = contents(*open_recordio({path("f.rec")}));
  size_t refused = 0;
  for_each_flip(file, [&](const std::string& flipped, size_t) {
    put(path("f.rec"), flipped);
    try {
      contents(*open_recordio({path("f.rec")}));
    } catch (const c10::ValueError&) {
      ++refused;
    }
  });
  EXPECT_GT(refused, file.size()) << "heads are checked, though the format has no checksums";
  const auto offsets = io::scan_recordio(io::as_bytes(file), "x");
  for (size_t length = 0; length < file.size(); ++length) {
    put(path("f.rec"), file.substr(0, length));
    const auto whole = std::ranges::find(offsets, length);
    if (whole == offsets.end()) {
      EXPECT_THROW(open_recordio({path("f.rec")}), c10::ValueError) << length;
    } else {
      const auto prefix = contents(*open_recordio({path("f.rec")}));
      EXPECT_TRUE(std::ranges::equal(prefix, std::span(expected).first(prefix.size())));
    }
  }
  put(path("f.idx"), "0\t0\n1\t40\n2\t96\n");
  for (const uint64_t offset : offsets) {
    put(path("f.rec"), file.substr(0, offset));
    EXPECT_THROW(open_recordio({path("f.rec")}), c10::ValueError) << "the index tells that records are missing";
  }
}

}  // namespace bellows::data
