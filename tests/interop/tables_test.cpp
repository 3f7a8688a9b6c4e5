#include <cmath>

#include "bellows/data/formats/table_source.h"
#include "bellows/io/tables/csv.h"
#include "bellows/io/tables/number_text.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/targets.h"
#include "tests/interop/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kTableGoldens = std::string(BELLOWS_SOURCE_DIR) + "/tests/goldens/interop/tables/";

template <class T>
T number_in(const Sample& sample, std::string_view name) {
  T value{};
  const Field* field = sample.find(name);
  EXPECT_TRUE(field && field->bytes.size() == sizeof(T)) << name;
  if (field && field->bytes.size() == sizeof(T)) std::memcpy(&value, field->bytes.data(), sizeof(T));
  return value;
}

std::string text_in(const Sample& sample, std::string_view name) {
  const Field* field = sample.find(name);
  return field && !field->is_array ? std::string(io::as_text(field->bytes)) : "no text";
}

class TablesTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string file(const std::string& name, const std::string& content) const {
    put_file(path(name), content);
    return path(name);
  }
  std::string csv_error(const std::string& content, const CsvOptions& options = {}) const {
    const std::string name = file("bad.csv", content);
    return error_of([&] { open_csv({name}, options); });
  }
  std::string jsonl_error(const std::string& content) const {
    const std::string name = file("bad.jsonl", content);
    return error_of([&] { open_jsonl({name}); });
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace

TEST_F(TablesTest, NumbersReadAndWriteAsInPython) {
  for (const auto& [value, text] :
       std::vector<std::pair<double, std::string>>{{0.1, "0.1"},
                                                   {1, "1.0"},
                                                   {-0.0, "-0.0"},
                                                   {1e22, "1e+22"},
                                                   {1e16, "1e+16"},
                                                   {1e15, "1000000000000000.0"},
                                                   {123456789.125, "123456789.125"},
                                                   {0.0001, "0.0001"},
                                                   {0.00001, "1e-05"},
                                                   {-1.5e-7, "-1.5e-07"},
                                                   {5e-324, "5e-324"},
                                                   {1.7976931348623157e308, "1.7976931348623157e+308"},
                                                   {-INFINITY, "-inf"}}) {
    EXPECT_EQ(io::float_text(value), text);
    EXPECT_EQ(io::parse_float(text), value);
  }
  EXPECT_EQ(io::parse_float("1e999"), INFINITY);
  EXPECT_EQ(io::parse_float("-1e-999"), -0.0);
  // The side on which a number leaves the range depends on its digits and its exponent.
  EXPECT_EQ(io::parse_float("0." + std::string(400, '0') + "1e5"), 0.0);
  EXPECT_EQ(io::parse_float("1" + std::string(700, '0') + "e-100"), INFINITY);
  for (const char* text : {"", "+", "x", "1x", "1 ", "0x10", "nan(1)", "+-1", "--1"})
    EXPECT_FALSE(io::parse_float(text)) << text;
  EXPECT_EQ(io::parse_int("+7"), 7);
  EXPECT_EQ(io::parse_int("-9223372036854775808"), INT64_MIN);
  for (const char* text : {"", "9223372036854775808", "1.0", "1e3", " 1"}) EXPECT_FALSE(io::parse_int(text)) << text;
  EXPECT_EQ(io::parse_uint("+18446744073709551615"), UINT64_MAX);
  for (const char* text : {"", "18446744073709551616", "-1", "-0", "1.0"}) EXPECT_FALSE(io::parse_uint(text)) << text;
}

TEST_F(TablesTest, KnowsUtf8) {
  for (const char* text : {"", "plain", "zwölf", "☃", "🔥", "\xf4\x8f\xbf\xbf"}) EXPECT_TRUE(io::is_utf8(text));
  for (const char* text :
       {"\x80", "\xc0\x80", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff", "a\xe2\x98"})
    EXPECT_FALSE(io::is_utf8(text));
}

TEST_F(TablesTest, ReadsCsvAsPythonWroteIt) {
  const Json expected = Json::parse(read_text_file(kTableGoldens + "expected.json")).at("cells");
  for (const char* name : {"cells.csv", "semicolons.csv"}) {
    const SourcePtr source =
        open_csv({kTableGoldens + name}, {.separator = std::string(name).starts_with("semi") ? ';' : ','});
    ASSERT_EQ(source->size(), static_cast<int64_t>(expected.size()));
    for (int64_t i = 0; i < source->size(); ++i) {
      const Sample sample = source->read(i);
      const Json& row = expected[static_cast<size_t>(i)];
      for (const char* column : {"text", "empty", "code"}) EXPECT_EQ(text_in(sample, column), row[column]);
      EXPECT_EQ(std::to_string(number_in<uint64_t>(sample, "huge")), row["huge"]);
      for (const char* column : {"id", "number", "label"})
        EXPECT_EQ(std::to_string(number_in<int64_t>(sample, column)), row[column]);
      EXPECT_EQ(io::float_text(number_in<double>(sample, "real")), row["real"]);
      EXPECT_EQ(sample.fields.size(), row.size());
    }
  }
}

TEST_F(TablesTest, WritesTheBytesOfPython) {
  const OutputFolder out;
  copy_all(*open_csv({kTableGoldens + "cells.csv"}), *csv_sink(out / "cells.csv"));
  EXPECT_EQ(read_text_file(out / "cells.csv"), read_text_file(kTableGoldens + "cells.csv"));
  copy_all(*open_jsonl({kTableGoldens + "records.jsonl"}), *jsonl_sink(out / "records.jsonl"));
  EXPECT_EQ(read_text_file(out / "records.jsonl"), read_text_file(kTableGoldens + "records.jsonl"));
}

TEST_F(TablesTest, TheWholeColumnDecidesItsType) {
  const SourcePtr source = open_csv({file("a.csv", "a,b,c,d,e,cls\n1,1,1,1, 7,3\n2,2.5,x,,8 ,4\n\n3,3,3,3,9,5\n")});
  const Sample sample = source->read(1);
  EXPECT_EQ(number_in<int64_t>(sample, "a"), 2);
  EXPECT_EQ(number_in<double>(sample, "b"), 2.5);
  EXPECT_EQ(text_in(sample, "c"), "x");
  EXPECT_TRUE(std::isnan(number_in<double>(sample, "d")));
  EXPECT_EQ(number_in<int64_t>(sample, "e"), 8);
  EXPECT_EQ(text_in(sample, "cls"), "4");
  EXPECT_EQ(source->size(), 3);
}

TEST_F(TablesTest, WholeNumbersOf64BitsKeepTheirDigits) {
  const SourcePtr source = open_csv({file("a.csv",
                                          "big,signed,least,real,gap,beyond,below,zero\n"
                                          "3,-1,4,1.5,,1,1,-0\n"
                                          "18446744073709551615,9223372036854775808,-9223372036854775808,"
                                          "9223372036854775808,9223372036854775808,18446744073709551616,"
                                          "-9223372036854775809,9223372036854775808\n")});
  const Sample one = source->read(0), two = source->read(1);
  EXPECT_EQ(two.find("big")->dtype, c10::kUInt64);
  EXPECT_EQ(number_in<uint64_t>(one, "big"), 3U);
  EXPECT_EQ(number_in<uint64_t>(two, "big"), UINT64_MAX);
  EXPECT_EQ(two.find("least")->dtype, c10::kLong);
  EXPECT_EQ(number_in<int64_t>(two, "least"), INT64_MIN);
  for (const char* neither : {"signed", "real", "gap", "zero"})
    EXPECT_EQ(text_in(two, neither), "9223372036854775808") << neither;
  EXPECT_EQ(text_in(two, "beyond"), "18446744073709551616");
  EXPECT_EQ(text_in(two, "below"), "-9223372036854775809");
}

TEST_F(TablesTest, CsvTakesNamesSeveralFilesAndLineEnds) {
  const std::string a = file("a.csv", "\xef\xbb\xbfx,y\r\n1,\"a\r\nb\"\r\n"), b = file("b.csv", "x,y\r2,c\r3,d"),
                    none = file("none.csv", "1,2\n3,4\n");
  const SourcePtr source = open_csv({a, b});
  EXPECT_EQ(text_in(source->read(0), "y"), "a\r\nb");
  EXPECT_EQ(number_in<int64_t>(source->read(2), "x"), 3);
  EXPECT_THAT(source->block_starts(), ElementsAre(0, 1));
  EXPECT_EQ(open_csv({none}, {.columns = {"p", "q"}})->size(), 2);
  EXPECT_EQ(text_in(open_csv({none}, {.columns = {"p", "q"}, .text = {"q"}})->read(1), "q"), "4");
  EXPECT_EQ(text_in(open_csv({file("named.csv", "x,label\n1,cat\n2,7\n")})->read(1), "label"), "7");
}

TEST_F(TablesTest, SaysWhereACsvFileIsWrong) {
  EXPECT_THAT(csv_error("a,b\n1,2\n3\n"),
              HasSubstr("bad.csv, line 3, byte 8: expected 2 cells, as in the header, found 1"));
  EXPECT_THAT(csv_error("a,b\n1,\"x\ny\n"), HasSubstr("line 2, byte 6: this opening quote has no closing quote"));
  EXPECT_THAT(csv_error("a,b\n\"x\"y,2\n"), HasSubstr("line 2, byte 7: expected a separator"));
  EXPECT_THAT(csv_error("a,a\n1,2\n"),
              HasSubstr("two columns are called \"a\". Rename one of them in the header line."));
  EXPECT_THAT(csv_error("1,2\n", {.columns = {"x", "x"}}),
              HasSubstr("two columns are called \"x\". Rename one of them in `columns`."));
  EXPECT_THAT(csv_error("a,b\n"), HasSubstr("has no rows"));
  EXPECT_THAT(csv_error(""), HasSubstr("found an empty file"));
  EXPECT_THAT(csv_error("a,label\r\n1,2\r\n1,cat\r\n"),
              HasSubstr("line 3, byte 16: expected an integer class number in the column \"label\", found \"cat\""));
  EXPECT_THAT(csv_error("a,label\n1,\n"),
              HasSubstr("expected an integer class number in the column \"label\", found \"\""));
  EXPECT_THAT(csv_error("a,label\n1,0.5\n"),
              ::testing::AllOf(HasSubstr("found the number \"0.5\""),
                               HasSubstr("rename the column, for example to \"target\"")));
  EXPECT_THAT(csv_error("a,label\n1,9223372036854775808\n"), HasSubstr("found the number \"9223372036854775808\""));
  EXPECT_THAT(csv_error("names\n1\n", {.text = {"name"}}), HasSubstr("Did you mean \"names\"?"));
  EXPECT_THAT(csv_error("\n\n1,2\n1\n", {.columns = {"x", "y"}}), HasSubstr("line 4"));
  EXPECT_THAT(error_of([&] {
                open_csv({file("a.csv", "x\n1\n"), file("b.csv", "y\n1\n")});
              }),
              HasSubstr("has the columns y, but the columns of"));
}

TEST_F(TablesTest, ReadsJsonLinesAsPythonWroteThem) {
  const Json expected = Json::parse(read_text_file(kTableGoldens + "expected.json")).at("records");
  const SourcePtr source = open_jsonl({kTableGoldens + "records.jsonl"});
  ASSERT_EQ(source->size(), 2);
  for (int64_t i = 0; i < 2; ++i) {
    const Sample sample = source->read(i);
    const Json& record = expected[static_cast<size_t>(i)];
    EXPECT_EQ(sample.key, record["__key__"]);
    EXPECT_EQ(number_in<int64_t>(sample, "x"), record["x"]);
    EXPECT_EQ(number_in<double>(sample, "y"), record["y"]);
    EXPECT_EQ(text_in(sample, "text"), record["text"]);
    EXPECT_EQ(number_in<bool>(sample, "flag"), record["flag"]);
    EXPECT_EQ(sample.find("list")->sizes, c10::IntArrayRef({3}));
    EXPECT_EQ(sample.find("nested")->sizes, c10::IntArrayRef({2, 2}));
    EXPECT_EQ(sample.find("nested")->dtype, c10::kDouble);
  }
}

TEST_F(TablesTest, WholeFilesDecideHowJsonNumbersAreRead) {
  const SourcePtr source = open_jsonl(
      {file("a.jsonl",
            "{\"a\": 1, \"b\": [1, 2], \"c\": [[1], [2, 3]], \"d\": null, \"e\": {\"x\": [1.5]}, \"f\": []}\r\n"
            "  \n"
            "{\"a\": 2.5, \"b\": [1, 2.5], \"c\": 18446744073709551615, \"e\": [true, false], \"f\": [1]}")});
  ASSERT_EQ(source->size(), 2);
  const Sample one = source->read(0), two = source->read(1);
  EXPECT_EQ(number_in<double>(one, "a"), 1);
  EXPECT_EQ(one.find("b")->dtype, c10::kDouble);
  EXPECT_EQ(text_in(one, "c"), "[[1],[2,3]]");
  EXPECT_EQ(text_in(one, "d"), "null");
  EXPECT_EQ(text_in(one, "e"), "{\"x\":[1.5]}");
  EXPECT_EQ(one.find("f")->sizes, c10::IntArrayRef({0}));
  EXPECT_EQ(two.find("c")->dtype, c10::kUInt64);
  EXPECT_EQ(number_in<uint64_t>(two, "c"), UINT64_MAX) << "no digit is lost";
  EXPECT_EQ(two.find("e")->dtype, c10::kBool);
}

TEST_F(TablesTest, JsonIsKeptAsItWas) {
  const std::string lines =
      "{\"__key__\": \"a\", \"x\": null, \"big\": 18446744073709551615, \"o\": {\"n\": null, \"i\": "
      "-9007199254740993}}\n"
      "{\"__key__\": \"b\", \"x\": 9007199254740993, \"big\": 0, \"o\": \"null\"}\n";
  const SourcePtr source = open_jsonl({file("a.jsonl", lines)});
  copy_all(*source, *jsonl_sink(path("b.jsonl")));
  const std::string written = read_text_file(path("b.jsonl"));
  for (size_t line = 0, from = 0, to = 0; line < 2;
       ++line, from = lines.find('\n', from) + 1, to = written.find('\n', to) + 1)
    EXPECT_EQ(Json::parse(written.substr(to, written.find('\n', to) - to)),
              Json::parse(lines.substr(from, lines.find('\n', from) - from)));
  EXPECT_THAT(jsonl_error("{\"a\": 1}\n{\"a\": 18446744073709551616}\n"),
              HasSubstr("line 2, byte 9: \"18446744073709551616\" needs more than 64 bits"));
  EXPECT_THAT(jsonl_error("{\"a\": {\"b\": [-9223372036854775809]}}\n"), HasSubstr("needs more than 64 bits"));
  EXPECT_THAT(jsonl_error("{\"a\": 0.5}\n{\"a\": 9007199254740993}\n"),
              HasSubstr("float64, which cannot represent the integers exactly"));
  EXPECT_THAT(jsonl_error("{\"a\": [9223372036854775808, -1]}\n"), HasSubstr("values above 2^63 - 1"));
  EXPECT_EQ(
      number_in<double>(open_jsonl({file("c.jsonl", "{\"a\": 9007199254740992}\n{\"a\": 1e20}\n")})->read(0), "a"),
      9007199254740992.0);
}

TEST_F(TablesTest, CsvNumbersBeyondFloat64StayText) {
  const SourcePtr source = open_csv({file("a.csv", "a,b\n1e400,inf\n2,-1e-400\n")});
  EXPECT_EQ(text_in(source->read(0), "a"), "1e400");
  EXPECT_EQ(text_in(source->read(1), "a"), "2");
  EXPECT_EQ(number_in<double>(source->read(0), "b"), INFINITY);
  EXPECT_EQ(number_in<double>(source->read(1), "b"), 0.0);
}

TEST_F(TablesTest, SaysWhichJsonLineIsWrong) {
  EXPECT_THAT(jsonl_error("{}\n{\"a\": }\n"),
              HasSubstr("bad.jsonl, line 2, byte 3: expected one JSON object, found invalid JSON at byte 6"));
  EXPECT_THAT(jsonl_error("{}\n[1]\n"), HasSubstr("line 2, byte 3: expected a JSON object, found another value"));
  EXPECT_THAT(jsonl_error("{} {}\n"), HasSubstr("line 1"));
  EXPECT_THAT(jsonl_error("{\"a\": \"\xff\"}\n"), HasSubstr("line 1"));
  EXPECT_THAT(jsonl_error("{\"a\": 1e999}\n"), HasSubstr("line 1"));
  EXPECT_THAT(jsonl_error("\n \n"), HasSubstr("contains no lines"));
  EXPECT_THAT(jsonl_error("{\"a\": 1, \"b\": 2}\n{\"a\": 1, \"b\": 2, \"a\": 3}\n"),
              HasSubstr("bad.jsonl, line 2, byte 17: two values of one object are called \"a\""));
  EXPECT_THAT(jsonl_error("{\"a\": [{\"b\": 1, \"c\": {}, \"b\": 2}]}\n"), HasSubstr("are called \"b\""));
  EXPECT_NO_THROW(open_jsonl({file("nested.jsonl", "{\"a\": {\"a\": 1}, \"b\": [{\"a\": 1}, {\"a\": 2}]}\n")}));
  EXPECT_THAT(jsonl_error("{\"a\": " + std::string(100'000, '[')), HasSubstr("nested deeper than 256"));
}

TEST_F(TablesTest, TablesNamePictures) {
  const std::string png = a_png();
  fs::create_directories(path("pictures"));
  file("pictures/1.png", png);
  const std::string csv = file("a.csv", "file,label\n./pictures/1.png,3\npictures/2.png,1\n../x.png,1\n"),
                    jsonl = file("a.jsonl", "{\"file\": \"1.png\", \"label\": 3}\n{\"label\": 3}\n");
  const SourcePtr rows = open_csv({csv}, {.image_column = "file"});
  const SourcePtr lines = open_jsonl({jsonl}, {.image_column = "file", .image_folder = path("pictures")});
  for (const SourcePtr& source : {rows, lines}) {
    const Sample sample = source->read(0);
    EXPECT_EQ(text_in(sample, "image"), png);
    EXPECT_EQ(number_in<int64_t>(sample, "label"), 3);
    EXPECT_EQ(sample.find("file"), nullptr);
  }
  EXPECT_THAT(error_of([&] { rows->read(1); }), HasSubstr("pictures/2.png"));
  EXPECT_THAT(error_of([&] { rows->read(2); }), HasSubstr("Paths must not contain \"..\""));
  EXPECT_THAT(error_of([&] { lines->read(1); }),
              HasSubstr("line 2, byte 30: expected the path of an image under \"file\""));
  EXPECT_THAT(error_of([&] { open_jsonl({jsonl}, {.image_column = "files"}); }), HasSubstr("has no key \"files\""));
}

TEST_F(TablesTest, TheSinksRefuseWhatTablesCannotHold) {
  const std::vector<float> values{1, NAN};
  Sample sample;
  sample.fields = {array_field("x", values, c10::kFloat, {2})};
  EXPECT_THAT(error_of([&] { csv_sink(path("a.csv"))->write(sample); }), HasSubstr("a CSV file stores single numbers"));
  EXPECT_THAT(error_of([&] { jsonl_sink(path("a.jsonl"))->write(sample); }), HasSubstr("JSON cannot represent nan"));
  sample.fields = {file_field("x", "\x89PNG\r\n\x1a\n")};
  EXPECT_THAT(error_of([&] { csv_sink(path("a.csv"))->write(sample); }), HasSubstr("found a PNG image"));
  EXPECT_THAT(error_of([&] { jsonl_sink(path("a.jsonl"))->write(sample); }), HasSubstr("found a PNG image"));
  sample.fields = {file_field("x", "a"), file_field("x", "b")};
  EXPECT_THAT(error_of([&] { csv_sink(path("a.csv"))->write(sample); }), HasSubstr("two fields have the name \"x\""));
  EXPECT_THAT(error_of([&] { jsonl_sink(path("a.jsonl"))->write(sample); }),
              HasSubstr("two fields have the name \"x\""));
  EXPECT_FALSE(fs::exists(path("a.csv")) || fs::exists(path("a.jsonl"))) << "nothing stays behind without close()";
}

TEST_F(TablesTest, OneEmptyColumnIsNoEmptyLine) {
  Sample sample;
  const auto sink = csv_sink(path("a.csv"));
  for (const char* text : {"", "x", ""}) {
    sample.fields = {file_field("t", text)};
    sink->write(sample);
  }
  sink->close();
  EXPECT_EQ(read_text_file(path("a.csv")), "t\r\n\"\"\r\nx\r\n\"\"\r\n");
  EXPECT_EQ(open_csv({path("a.csv")})->size(), 3);
}

TEST_F(TablesTest, AFileThatShrinksIsNamed) {
  const std::string name = file("a.csv", "x,y\n1,2\n3,4\n");
  const SourcePtr source = open_csv({name});
  fs::resize_file(name, 5);
  EXPECT_THAT(error_of([&] { source->read(1); }), HasSubstr("a.csv"));
}

TEST_F(TablesTest, MutatedFiles) {
  const auto bytes = [](const std::string& text) {
    return io::Bytes(io::as_bytes(text).begin(), io::as_bytes(text).end());
  };
  fuzz::sample_fuzzing({bytes(read_text_file(kTableGoldens + "cells.csv"))}, fuzz::csv);
  const std::string lines = read_text_file(kTableGoldens + "records.jsonl");
  fuzz::sample_fuzzing({bytes(lines.substr(0, lines.find('\n'))),
                        bytes("{\"a\": [[1, 2], [3, 4.5]], \"b\": [true], \"c\": {\"d\": []}}")},
                       fuzz::jsonl);
}

}  // namespace bellows::data::testing
