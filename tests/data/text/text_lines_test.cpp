#include "bellows/data/text/text_lines.h"

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/data/formats/folder_source.h"
#include "bellows/data/without_fields.h"
#include "bellows/io/bytes.h"
#include "bellows/system/file.h"
#include "tests/data/support.h"

namespace bellows::data {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

std::vector<std::string> lines_in(const std::string& text) {
  const TemporaryFolder folder;
  write_text_file(folder / "lines.txt", text);
  const SourcePtr source = open_text_lines(folder / "lines.txt");
  std::vector<std::string> lines;
  for (int64_t i = 0; i < source->size(); ++i) {
    const Sample sample = source->read(i);
    EXPECT_EQ(sample.id, i);
    lines.emplace_back(io::as_text(sample.find("txt")->bytes));
  }
  return lines;
}

}  // namespace

TEST(TextLines, EachLineIsASample) {
  EXPECT_THAT(lines_in("one\ntwo\n"), ElementsAre("one", "two"));
  EXPECT_THAT(lines_in("one\r\ntwo"), ElementsAre("one", "two"));
  EXPECT_THAT(lines_in("one\n\n\ntwo\r"), ElementsAre("one", "", "", "two"));
  EXPECT_THAT(lines_in("\n"), ElementsAre(""));
}

TEST(TextLines, SamplesNameTheirPlace) {
  const TemporaryFolder folder;
  write_text_file(folder / "lines.txt", "one\ntwo\n");
  const SourcePtr source = open_text_lines(folder / "lines.txt");
  const Sample sample = source->read(1);
  EXPECT_THAT(sample.where(), HasSubstr("txt at byte 4 of " + folder / "lines.txt"));
}

TEST(TextLines, RefusesEmptyAndMissingFiles) {
  const TemporaryFolder folder;
  write_text_file(folder / "empty.txt", "");
  EXPECT_THROW(open_text_lines(folder / "empty.txt"), c10::ValueError);
  EXPECT_THROW(open_text_lines(folder / "none.txt"), c10::ValueError);
}

TEST(ImageFiles, AreListedBelowAFolderAndRead) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "a/c");
  std::filesystem::create_directories(folder / ".hidden");
  for (const char* name : {"b.png", "a/c/x.PNG", ".hidden/y.png", "a/.z.png", "notes.txt"})
    std::ofstream(folder / name) << testing::a_png();
  const std::vector<std::string> files = list_image_files(folder / "");
  EXPECT_THAT(files, ElementsAre(folder / "a/c/x.PNG", folder / "b.png"));
  const SourcePtr source = open_image_files({files[1], folder / "none.png", files[0]});
  EXPECT_EQ(source->size(), 3);
  const Sample sample = source->read(2);
  EXPECT_EQ(sample.key, files[0]);
  EXPECT_EQ(sample.field_names(), "png");
  EXPECT_THAT(testing::error_of([&] { source->read(1); }), HasSubstr("none.png"));
  EXPECT_THROW(open_image_files({}), c10::ValueError);
  EXPECT_THROW(list_image_files(folder / "none"), c10::ValueError);
}

TEST(WithoutFields, RemovesFieldsAndKeepsIds) {
  const at::Tensor numbers = at::arange(4);
  const SourcePtr all = subset(from_tensors({{"a", numbers}, {"label", numbers}, {"b", numbers}}), {2, 3});
  const SourcePtr rest = without_fields(all, {"label", "b", "none"});
  EXPECT_EQ(rest->size(), 2);
  EXPECT_EQ(rest->id_bound(), 4);
  const Sample sample = rest->read(1);
  EXPECT_EQ(sample.id, 3);
  EXPECT_EQ(sample.field_names(), "a");
  EXPECT_THROW(without_fields(nullptr, {}), c10::ValueError);
}

}  // namespace bellows::data
