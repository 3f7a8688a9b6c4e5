#include "bellows/io/records/beton.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bellows/io/archives/decompress.h"
#include "bellows/io/images/image.h"
#include "tests/interop/beton_support.h"
#include "tests/io/support.h"

namespace bellows::io {

using BetonTest = FolderTest;

namespace {

using Json = nlohmann::json;

Json beton_expected(const std::string& name) {
  return Json::parse(read_text_file(BELLOWS_SOURCE_DIR "/tests/goldens/interop/beton/" + name + ".json"));
}

std::string hex(ByteSpan bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    for (const int digit : {std::to_integer<int>(b) >> 4, std::to_integer<int>(b) & 15})
      text += "0123456789abcdef"[digit];
  }
  return text;
}

template <class T>
T number_in(ByteSpan bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

Json image_as_json(const BetonValue& value) {
  Json image{{"jpg", value.is_jpeg}, {"size", {value.height, value.width}}};
  uint64_t sum = 0;
  for (const std::byte b : value.bytes) sum += std::to_integer<uint64_t>(b);
  if (value.bytes.size() <= 10000) {
    image["hex"] = hex(value.bytes);
  } else {
    image["sum"] = sum;
  }
  return image;
}

/// The value as tools/goldens/beton.py notes what FFCV found.
Json as_json(const BetonField& field, const BetonValue& value) {
  switch (field.type) {
    case BetonType::float64:
      return number_in<double>(value.bytes);
    case BetonType::int64:
      return number_in<int64_t>(value.bytes);
    case BetonType::json:
      return hex(value.bytes) + "00";
    case BetonType::bytes:
      return hex(value.bytes);
    case BetonType::image:
      return image_as_json(value);
    default:
      return {{"shape", field.sizes}, {"hex", hex(value.bytes)}};
  }
}

Json all_of(const BetonReader& reader) {
  Json samples = Json::array();
  for (int64_t i = 0; i < reader.size(); ++i) {
    Json sample;
    for (size_t k = 0; k < reader.fields().size(); ++k)
      sample[reader.fields()[k].name] = as_json(reader.fields()[k], reader.read(i, k));
    samples.push_back(sample);
  }
  return samples;
}

/// The expected samples without the types of arrays, which are compared by themselves.
Json without_types(Json samples) {
  for (Json& sample : samples) {
    for (Json& value : sample) {
      if (value.is_object()) value.erase("type");
    }
  }
  return samples;
}

/// Writes all that a reader finds.
void copy_beton(const BetonReader& reader, const std::string& path) {
  BetonWriter writer(path, reader.fields(), reader.page_size());
  for (int64_t i = 0; i < reader.size(); ++i) {
    std::vector<BetonValue> values;
    for (size_t k = 0; k < reader.fields().size(); ++k) values.push_back(reader.read(i, k));
    writer.add(values);
  }
  writer.close();
}

BetonValue text_value(std::string_view text) {
  return {.bytes = as_bytes(text)};
}

std::string repeated(int64_t i, int64_t times) {
  std::string text;
  for (; times > 0; --times) text += std::to_string(i);
  return text;
}

}  // namespace

TEST_F(BetonTest, ReadsWhatFfcvWrote) {
  for (const std::string name : {"mixed", "numbers", "empty", "arrays", "pages", "rows", "narrow"}) {
    const Bytes file = beton_golden(name);
    const BetonReader reader(file, name);
    const Json expected = beton_expected(name);
    EXPECT_EQ(reader.page_size(), expected["page_size"]) << name;
    ASSERT_EQ(reader.size(), expected["samples"].size()) << name;
    Json found = all_of(reader);
    if (name == "empty") {
      for (Json& sample : found) sample["image"].erase("hex");
    }
    EXPECT_TRUE(found == without_types(expected["samples"])) << name << found.dump(1);
  }
}

TEST_F(BetonTest, KnowsTheTypesOfNumPy) {
  const Bytes file = beton_golden("arrays");
  const BetonReader reader(file, "arrays");
  using enum c10::ScalarType;
  const std::vector<c10::ScalarType> expected{Bool,   Byte, Char, UInt16, Short,  UInt32,       Int,
                                              UInt64, Long, Half, Float,  Double, ComplexFloat, ComplexDouble};
  ASSERT_EQ(reader.fields().size(), expected.size());
  for (size_t k = 0; k < expected.size(); ++k) EXPECT_EQ(reader.fields()[k].dtype, expected[k]);
}

TEST_F(BetonTest, FindsTheImagesAmongEmptyValues) {
  const Bytes file = beton_golden("empty");
  const BetonReader reader(file, "empty");
  for (int64_t i = 0; i < reader.size(); ++i) EXPECT_EQ(decode_image(reader.read(i, 1).bytes).numel(), 27);
}

TEST_F(BetonTest, WritesTheBytesOfFfcv) {
  for (const std::string name : {"mixed", "numbers", "arrays", "rows", "narrow"}) {
    const Bytes file = beton_golden(name);
    copy_beton(BetonReader(file, name), path(name + ".beton"));
    EXPECT_TRUE(read_text_file(path(name + ".beton")) == as_text(file)) << name << ": megabytes, not shown";
  }
  // Two processes fill pages in turns, one fills them in order; and values without bytes are laid out otherwise.
  for (const std::string name : {"pages", "empty"}) {
    const Bytes file = beton_golden(name);
    const BetonReader theirs(file, name);
    copy_beton(theirs, path(name + ".beton"));
    EXPECT_TRUE(all_of(BetonReader(path(name + ".beton"))) == all_of(theirs)) << name;
  }
}

TEST_F(BetonTest, NoTwoValuesBeginAtTheSamePlace) {
  const Bytes file = beton_golden("empty");
  copy_beton(BetonReader(file, "empty"), path("empty.beton"));
  const std::string text = read_text_file(path("empty.beton"));
  std::vector<uint64_t> pointers;
  for (auto at = load_little<uint64_t>(as_bytes(text), 16); at < text.size(); at += 24)
    pointers.push_back(load_little<uint64_t>(as_bytes(text), at + 8));
  std::sort(pointers.begin(), pointers.end());
  EXPECT_EQ(pointers.size(), 12U);
  EXPECT_TRUE(std::adjacent_find(pointers.begin(), pointers.end()) == pointers.end());
}

TEST_F(BetonTest, PagesMakeRoomForRows) {
  // Rows of 24 bytes outgrow the page that is kept for them: once with several pages of data, once with one.
  for (const bool large : {true, false}) {
    const std::string file = path(large ? "grown.beton" : "grown_small.beton");
    const int64_t count = large ? 100'000 : 300'000;
    const auto text = [&](int64_t i) { return repeated(i, large ? 1 + i % 40 : 0); };
    BetonWriter writer(file, {{"label", BetonType::int64}, {"text", BetonType::bytes}}, 2 << 20);
    for (int64_t i = 0; i < count; ++i) {
      const std::string content = text(i);
      writer.add({{.bytes = std::as_bytes(std::span(&i, 1))}, text_value(content)});
    }
    writer.close();
    const BetonReader reader(file);
    ASSERT_EQ(reader.size(), count);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i) {
      wrong += number_in<int64_t>(reader.read(i, 0).bytes) != i || as_text(reader.read(i, 1).bytes) != text(i) ||
               reader.page(i) < (large ? 2 : 4);
    }
    EXPECT_EQ(wrong, 0) << large;
  }
}

TEST_F(BetonTest, ASampleThatDoesNotFitBeginsANewPage) {
  const std::string third(700'000, 't'), rest((2 << 20) - 700'002 - 2, 'r');
  const std::vector<BetonField> fields{{"a", BetonType::bytes}, {"b", BetonType::json}};
  BetonWriter writer(path("fit.beton"), fields, 2 << 20);
  for (int i = 0; i < 3; ++i) writer.add({text_value(third), text_value("1")});
  writer.add({text_value(rest), text_value("2")});  // exactly what is left behind the third
  writer.add({text_value(""), text_value("")});
  writer.close();
  const BetonReader reader(path("fit.beton"));
  std::vector<uint64_t> pages;
  for (int64_t i = 0; i < 5; ++i) pages.push_back(reader.page(i));
  EXPECT_EQ(pages, (std::vector<uint64_t>{1, 1, 2, 2, 3}));
  EXPECT_EQ(as_text(reader.read(3, 0).bytes), rest);
  EXPECT_EQ(as_text(reader.read(4, 1).bytes), "");
}

TEST_F(BetonTest, WriterSaysWhichFieldsItCannotHold) {
  const auto open_error = [&](std::vector<BetonField> fields, uint64_t page = 2 << 20) {
    return value_error([&] { BetonWriter writer(path("bad.beton"), std::move(fields), page); });
  };
  const auto array = [](c10::ScalarType dtype, std::vector<int64_t> sizes) {
    return BetonField{"x", BetonType::array, dtype, std::move(sizes)};
  };
  const BetonField label{"label", BetonType::int64};
  EXPECT_TRUE(has(open_error({label}, 1 << 20), "power of two from 2097152"));
  EXPECT_TRUE(has(open_error({label}, 3 << 20), "power of two"));
  EXPECT_TRUE(has(open_error({label}, uint64_t{1} << 32), "power of two"));
  EXPECT_TRUE(has(open_error({}), "1 to 1000 fields, got 0"));
  EXPECT_TRUE(has(open_error({label, label}), "two fields have the name \"label\""));
  EXPECT_TRUE(has(open_error({{"name_of_17_letter", BetonType::int64}}), "1 to 16 ASCII"));
  EXPECT_TRUE(has(open_error({{"é", BetonType::int64}}), "1 to 16 ASCII"));
  EXPECT_TRUE(has(open_error({array(c10::ScalarType::BFloat16, {1})}), "NumPy has no type"));
  EXPECT_TRUE(has(open_error({array(c10::ScalarType::Float, {})}), "1 to 32 sizes"));
  EXPECT_TRUE(has(open_error({array(c10::ScalarType::Float, {2, 0})}), "at least one value"));
  EXPECT_TRUE(has(open_error({array(c10::ScalarType::Float, {INT64_MAX, 8})}), "at most a page"));
}

TEST_F(BetonTest, WriterSaysWhichValuesItCannotHold) {
  BetonWriter writer(path("bad.beton"),
                     {{"image", BetonType::image},
                      {"meta", BetonType::json},
                      {"x", BetonType::array, c10::ScalarType::Float, {2}},
                      {"label", BetonType::int64}},
                     2 << 20);
  const std::string pixels(12, 'p'), word(8, 'w'), huge(2 << 20, 'h');
  const std::vector<BetonValue> good{
      {.bytes = as_bytes(pixels), .height = 2, .width = 2}, text_value("{}"), text_value(word), text_value(word)};
  const auto add_error = [&](size_t field, BetonValue value) {
    std::vector<BetonValue> values = good;
    values[field] = value;
    return value_error([&] { writer.add(values); });
  };
  EXPECT_TRUE(has(add_error(0, {.bytes = as_bytes(pixels), .height = 2, .width = 3}), "expected 18 bytes of RGB"));
  EXPECT_TRUE(has(add_error(0, {.bytes = {}, .height = 0, .width = 3}), "sides from 1 to 65535"));
  EXPECT_TRUE(has(add_error(0, {.bytes = {}, .height = 1, .width = 65536}), "sides from 1 to 65535"));
  EXPECT_TRUE(has(add_error(0, {.bytes = as_bytes(pixels), .is_jpeg = true, .height = 2, .width = 2}), "to be a JPEG"));
  EXPECT_TRUE(has(add_error(1, text_value(std::string_view("a\0b", 3))), "contains a NUL byte"));
  EXPECT_TRUE(has(add_error(1, text_value(huge)), "at most one page (2097152 bytes)"));
  EXPECT_TRUE(has(add_error(2, text_value("abcd")), "expected 8 bytes for \"x\", got 4"));
  EXPECT_TRUE(has(add_error(3, text_value("abcd")), "expected 8 bytes for the number"));
  EXPECT_TRUE(has(value_error([&] { writer.add({}); }), "expected 4 values, got 0"));
  EXPECT_EQ(writer.size(), 0);
  writer.add(good);
  EXPECT_FALSE(std::filesystem::exists(path("bad.beton")));
}

}  // namespace bellows::io
