#include "bellows/data/classes.h"

#include "bellows/system/file.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string message_when_read(const Source& source, int64_t index) {
  try {
    source.read(index);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

std::vector<int64_t> labels_of(const Source& source) {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < source.size(); ++i) {
    const Sample sample = source.read(i);
    const Field* label = sample.find("label");
    EXPECT_TRUE(label && label->is_array && label->sizes.empty());
    std::memcpy(&labels.emplace_back(), label->bytes.data(), sizeof(int64_t));
  }
  return labels;
}

TEST(Classes, NamesInTarsAreSortedAndNumbered) {
  const TemporaryFolder folder;
  write_shard(folder / "cls.tar", {{"a.png", a_png()},
                                   {"a.cls", "dog"},
                                   {"b.png", a_png()},
                                   {"b.cls", " cat\n"},
                                   {"c.png", a_png()},
                                   {"c.cls", "owl"}});
  write_shard(folder / "json.tar", {{"a.png", a_png()},
                                    {"a.json", R"({"label": "dog", "size": 3})"},
                                    {"b.png", a_png()},
                                    {"b.json", R"("cat")"},
                                    {"c.png", a_png()},
                                    {"c.json", R"({"label": "owl"})"}});
  write_text_file(folder / "table.jsonl",
                  "{\"label\": \"dog\", \"x\": 1}\n{\"label\": \"cat\", \"x\": 1}\n"
                  "{\"label\": \"owl\", \"x\": 1}\n");
  for (const char* name : {"cls.tar", "json.tar", "table.jsonl"}) {
    const SourcePtr stored = open(folder / name).source();
    EXPECT_TRUE(has_named_labels(*stored)) << name;
    EXPECT_THAT(class_names(*stored), ElementsAre("cat", "dog", "owl")) << name;
    const SourcePtr numbered = number_labels(stored, class_names(*stored));
    EXPECT_THAT(labels_of(*numbered), ElementsAre(1, 0, 2)) << name;
    EXPECT_EQ(data::fingerprint(Dataset(numbered)), data::fingerprint(Dataset(stored))) << "that of what is stored";
  }
  const SourcePtr pictures = open(folder / "cls.tar").source();
  Loader loader = Dataset(number_labels(pictures, {"cat", "dog", "owl"})).require({"image", "label"}).batch(3).loader();
  EXPECT_EQ((*loader.next())["label"].sum().item<int64_t>(), 3);
}

/// Nor is it a name, which would make one class of each.
TEST(Classes, ANumberBeyond64BitsIsNoLabel) {
  const TemporaryFolder folder;
  write_shard(folder / "x.tar", {{"a.cls", "99999999999999999999"}, {"b.cls", "-99999999999999999999\n"}});
  const SourcePtr stored = open(folder / "x.tar").source();
  EXPECT_FALSE(has_named_labels(*stored));
  EXPECT_TRUE(class_names(*stored).empty());
  EXPECT_THAT(message_when_read(*number_labels(stored, {"cat"}), 1),
              AllOf(HasSubstr("expected the number or the name of a class"), HasSubstr("-99999999999999999999")));
}

TEST(Classes, NumbersStayWhatTheyAre) {
  const TemporaryFolder folder;
  write_shard(folder / "x.tar", {{"a.cls", "oops"}, {"b.json", R"({"label": 0})"}, {"c.cls", "2"}});
  const SourcePtr stored = open(folder / "x.tar").source();
  EXPECT_FALSE(has_named_labels(*open(kDigits, {.split = "test"}).source()));
  EXPECT_FALSE(has_named_labels(*stored)) << "most do";
  EXPECT_THAT(class_names(*stored), ElementsAre("0", "1", "2")) << "the other one is a bad sample";
}

// Names and numbers cannot both be right. A label that is missing is no class "null".
TEST(Classes, WhatIsNoClassIsNamedWithItsSample) {
  const TemporaryFolder folder;
  write_text_file(folder / "x.jsonl",
                  "{\"label\": \"cat\"}\n{\"label\": null}\n{\"label\": \"\"}\n{\"label\": {}}\n"
                  "{\"label\": \"cats\"}\n");
  const SourcePtr stored = open(folder / "x.jsonl").source();
  EXPECT_THAT(class_names(*stored), ElementsAre("cat", "cats")) << "no null";
  const SourcePtr numbered = number_labels(stored, {"cat"});
  EXPECT_THAT(message_when_read(*numbered, 1),
              AllOf(HasSubstr("label: sample 1, label at byte 17 of "), HasSubstr("x.jsonl"),
                    HasSubstr("expected the number or the name of a class, found \"null\". Add a label")));
  EXPECT_THAT(message_when_read(*numbered, 2), AllOf(HasSubstr("sample 2"), HasSubstr("found \"\"")));
  EXPECT_THAT(message_when_read(*numbered, 3), HasSubstr("found \"{}\""));
  EXPECT_THAT(message_when_read(*numbered, 4), HasSubstr("no class is called \"cats\". Did you mean \"cat\"?"));
  write_shard(folder / "null.tar", {{"a.json", R"({"label": "cat"})"}, {"b.json", R"({"label": null})"}});
  EXPECT_THAT(message_when_read(*number_labels(open(folder / "null.tar").source(), {"cat"}), 1),
              AllOf(HasSubstr("sample \"b\""), HasSubstr("null.tar"), HasSubstr("label\\x22: null}")));
  write_shard(folder / "mixed.tar", {{"a.cls", "cat"}, {"b.cls", "7"}});
  EXPECT_THAT(message_when_read(*number_labels(open(folder / "mixed.tar").source(), {"cat"}), 1),
              HasSubstr("expected a class name, like the labels of the other samples, found a number"));
  EXPECT_THAT(error_of([] { number_labels(nullptr, {}); }), HasSubstr("expected a source, got null"));
}

}  // namespace
}  // namespace bellows::data::testing
