#include "bellows/data/formats/folder_source.h"
#include "bellows/data/rename.h"
#include "bellows/io/images/image.h"
#include "tests/interop/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;
using Json = nlohmann::json;

void fill(const std::string& folder, const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    const fs::path path = fs::path(folder) / file;
    fs::create_directories(path.parent_path());
    put_file(path.string(), file.ends_with(".txt") ? "text" : a_png());
  }
}

int64_t label_of(const Sample& sample) {
  int64_t label = -1;
  if (const Field* field = sample.find("label")) std::memcpy(&label, field->bytes.data(), sizeof(label));
  return label;
}

Sample labelled(const std::string& key, const std::string& picture, const std::vector<int64_t>& label) {
  Sample sample;
  sample.key = key;
  sample.fields = {file_field("png", picture), array_field("label", label, c10::kLong)};
  return sample;
}

}  // namespace

TEST(ImageFolderTest, KeepsTheOrderOfTorchvision) {
  const std::string goldens = std::string(BELLOWS_SOURCE_DIR) + "/tests/goldens/interop/tables/expected.json";
  const Json expected = Json::parse(read_text_file(goldens));
  TemporaryFolder folder;
  fill(folder / "tree", expected["tree"].get<std::vector<std::string>>());
  EXPECT_EQ(Json(image_folder_classes(folder / "tree")), expected["classes"]);
  const SourcePtr source = open_image_folder(folder / "tree/");
  ASSERT_EQ(source->size(), static_cast<int64_t>(expected["samples"].size()));
  for (int64_t i = 0; i < source->size(); ++i) {
    const Sample sample = source->read(i);
    const std::string path = expected["samples"][static_cast<size_t>(i)][0];
    EXPECT_EQ(sample.file, folder / "tree/" + path);
    EXPECT_EQ(sample.key, path.substr(0, path.rfind('.')));
    EXPECT_EQ(label_of(sample), expected["samples"][static_cast<size_t>(i)][1]);
    EXPECT_EQ(io::as_text(sample.fields[0].bytes), a_png());
  }
  EXPECT_EQ(source->read(5).fields[0].name, "png");
  EXPECT_EQ(source->read(0).fields[0].name, "jpg");
}

TEST(ImageFolderTest, ReadsFlatFoldersAndSplits) {
  TemporaryFolder folder;
  fill(folder / "flat", {"b.png", "a.png", "notes.txt"});
  const SourcePtr flat = open_image_folder(folder / "flat");
  ASSERT_EQ(flat->size(), 2);
  EXPECT_EQ(flat->read(0).key, "a");
  EXPECT_EQ(flat->read(0).fields.size(), 1U);
  fill(folder / "split", {"train/x/1.png", "train/y/1.png", "val/x/2.png"});
  EXPECT_THAT(image_folder_splits(folder / "split"), ElementsAre("train", "val"));
  EXPECT_EQ(open_image_folder(folder / "split", "train")->size(), 2);
  EXPECT_THAT(error_of([&] { open_image_folder(folder / "split"); }),
              HasSubstr("has the splits train, val. Choose one"));
  EXPECT_THAT(error_of([&] { open_image_folder(folder / "split", "vall"); }), HasSubstr("Did you mean \"val\"?"));
  EXPECT_THAT(error_of([&] { open_image_folder(folder / "flat", "val"); }), HasSubstr("It has no splits"));
}

TEST(ImageFolderTest, RefusesWhatWouldShiftLabels) {
  TemporaryFolder folder;
  fill(folder / "a", {"x/1.png", "y/notes.txt"});
  EXPECT_THAT(error_of([&] { open_image_folder(folder / "a"); }), HasSubstr("a/y has no .jpg, .jpeg or .png file"));
  fill(folder / "b", {"x/1.png", "x/2.webp", "y/1.TIF", "y/2.png"});
  EXPECT_THAT(error_of([&] { open_image_folder(folder / "b"); }), HasSubstr("2 images have an unsupported format"));
  EXPECT_THAT(error_of([&] { open_image_folder(folder / "none"); }), HasSubstr("cannot list"));
  fs::create_directories(folder / "empty");
  EXPECT_THAT(error_of([&] { open_image_folder(folder / "empty"); }), HasSubstr("has no .jpg, .jpeg or .png file"));
}

TEST(ImageFolderTest, AFileThatVanishesIsNamed) {
  TemporaryFolder folder;
  fill(folder / "a", {"1.png", "2.png"});
  const SourcePtr source = open_image_folder(folder / "a");
  fs::remove(folder / "a/2.png");
  EXPECT_THAT(error_of([&] { source->read(1); }), HasSubstr("cannot open " + folder / "a/2.png"));
}

TEST(ImageFolderTest, WritesClassFolders) {
  const OutputFolder out;
  const std::string picture = a_png();
  const std::vector<uint8_t> pixels(64, 9);
  const std::vector<int64_t> cat{0}, dog{1};
  const auto sink = image_folder_sink(out / "pictures", {.classes = {"cat", "dog"}});
  sink->write(labelled("one", picture, dog));
  sink->write(labelled("cat/two", picture, cat));
  Sample decoded;
  decoded.id = 17;
  decoded.fields = {array_field("image", pixels, c10::kByte, {8, 8, 1}), file_field("cls", "1\n")};
  sink->write(decoded);
  Sample plain;
  plain.key = "deep/three";
  plain.fields = {file_field("image", picture), file_field("json", "0")};
  sink->write(plain);
  EXPECT_FALSE(fs::exists(out / "pictures"));
  sink->close();
  const SourcePtr source = open_image_folder(out / "pictures");
  std::vector<std::string> keys;
  for (int64_t i = 0; i < source->size(); ++i) keys.emplace_back(source->read(i).key);
  EXPECT_THAT(keys, ElementsAre("cat/two", "cat/deep/three", "dog/00000017", "dog/one"));
  EXPECT_EQ(label_of(source->read(3)), 1);
  EXPECT_EQ(io::decode_image(source->read(2).fields[0].bytes, io::ColorMode::keep).sizes(),
            c10::IntArrayRef({8, 8, 1}));
}

TEST(ImageFolderTest, CopiesAFolderAsItIs) {
  TemporaryFolder folder;
  fill(folder / "a", {"00000/1.png", "00001/x/1.png", "00001/2.png"});
  const SourcePtr source = open_image_folder(folder / "a");
  copy_all(*source, *image_folder_sink(folder / "b"));
  const SourcePtr copy = open_image_folder(folder / "b");
  ASSERT_EQ(copy->size(), source->size());
  for (int64_t i = 0; i < copy->size(); ++i) EXPECT_EQ(shown(copy->read(i)), shown(source->read(i)));
}

TEST(ImageFolderTest, AClassWithoutAPictureWouldShiftTheOthers) {
  TemporaryFolder folder;
  const std::string picture = a_png();
  const std::vector<int64_t> dog{1}, owl{2};
  {
    const auto sink = image_folder_sink(folder / "a", {.classes = {"cat", "dog", "owl"}});
    sink->write(labelled("a", picture, owl));
    sink->write(labelled("b", picture, dog));
    EXPECT_THAT(error_of([&] { sink->close(); }), HasSubstr("labels must be 0 to 2 without a gap, but no label is 0"));
  }
  EXPECT_TRUE(fs::is_empty(folder / ""));
}

TEST(ImageFolderTest, TheSinkRefusesWhatItCannotKeep) {
  TemporaryFolder folder;
  const std::string picture = a_png();
  const std::vector<int64_t> zero{0}, five{5};
  const auto sink = image_folder_sink(folder / "a", {.classes = {"x"}});
  const auto error = [&](const Sample& sample) { return error_of([&] { sink->write(sample); }); };
  EXPECT_THAT(error(labelled("../../evil", picture, zero)), HasSubstr("is not a valid path inside the folder"));
  EXPECT_THAT(error(labelled("/etc/x", picture, zero)), HasSubstr("is not a valid path inside the folder"));
  EXPECT_THAT(error(labelled("a", picture, five)), HasSubstr("expected a label in [0, 1), found 5"));
  sink->write(labelled("a", picture, zero));
  EXPECT_THAT(error(labelled("a", picture, zero)), HasSubstr("has the same file name x/a.png"));
  Sample bare;
  bare.fields = {file_field("png", picture)};
  EXPECT_THAT(error(bare), HasSubstr("has no label, but other samples have one"));
  bare.fields.push_back(file_field("txt", "a text"));
  EXPECT_THAT(error(bare), HasSubstr("cannot store the field \"txt\""));
  bare.fields = {file_field("txt", "a text")};
  EXPECT_THAT(error(bare), HasSubstr("has no image"));
  bare.fields = {file_field("png", picture), file_field("json", "{\"label\": 0, \"more\": 1}")};
  EXPECT_THAT(error(bare), HasSubstr("cannot store a JSON object"));
  EXPECT_THAT(error_of([&] {
                image_folder_sink(folder / "c", {.classes = {"b", "a"}});
              }),
              HasSubstr("the classes must be sorted"));
}

}  // namespace bellows::data::testing
