#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>

#include "tests/data/convert/convert_support.h"

namespace bellows::data {

namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Pictures with these labels.
Dataset pictures_of(const std::vector<int64_t>& labels) {
  const auto count = static_cast<int64_t>(labels.size());
  return Dataset(from_tensors({{"image", at::randint(256, {count, 8, 8, 1}, at::kByte)},
                               {"label", at::tensor(labels, at::TensorOptions().dtype(at::kLong))}}));
}

}  // namespace

TEST(ConvertRefuses, AnotherDataSetBesideShards) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  convert(digits(), path);
  const std::string before = all_bytes(path);
  const Dataset train = open(kDigits, {.split = "train"});
  const auto refused = [&](const DatasetInfo& info, const ConvertOptions& options) {
    const std::string message = error_of([&] { convert(Dataset(train.source(), info), path, options); });
    EXPECT_TRUE(all_bytes(path) == before) << message;
    return message;
  };
  DatasetInfo pets = train.info();
  pets.classes = {"cat", "dog"};
  EXPECT_THAT(refused(pets, {}), AllOf(HasSubstr("a dataset with different classes: expected the values of the source, "
                                                 "\"cat, dog\", found \"0, 1, 2, 3, 4, 5, 6, 7, 8, 9\""),
                                       HasSubstr("Choose another folder")));
  DatasetInfo darker = train.info(), flatter = train.info();
  darker.mean = {0.1};
  flatter.std = {0.5};
  EXPECT_THAT(refused(darker, {}), HasSubstr("with different mean: expected the values of the source, \"0.1\", found"));
  EXPECT_THAT(refused(flatter, {}), HasSubstr("with different std: expected the values of the source, \"0.5\", found"));
  EXPECT_THAT(
      refused(train.info(), {.picture = parse_recode("4x4", "")}),
      HasSubstr("with different image_size: expected the values of the source, \"4, 4, 1\", found \"8, 8, 1\""));
  EXPECT_THAT(refused(train.info(), {.format = "webdataset"}),
              AllOf(HasSubstr("the split \"test\""), HasSubstr("is pack"), HasSubstr("expected webdataset")));
  convert(train, path);
  EXPECT_EQ(open(path, {.split = "train"}).size(), train.size());
}

TEST(ConvertRefuses, NamesThatItsShardsWouldHave) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  convert(digits(), path);
  const Dataset train = open(kDigits, {.split = "train"});
  write_text_file(path + "/train-000003.pack", "mine");
  const std::string before = all_bytes(path);
  EXPECT_THAT(error_of([&] { convert(train, path); }),
              HasSubstr(path + "/train-000003.pack already exists and has the name of a shard of this split"));
  EXPECT_TRUE(all_bytes(path) == before);
  std::filesystem::remove(path + "/train-000003.pack");
  for (const char* other : {"train-3.pack", "train-00000x.pack", "training-000000.pack", "train-000000.tar"})
    write_text_file(path + "/" + other, "mine");
  EXPECT_NO_THROW(convert(train, path));
}

TEST(ConvertRefuses, NamesThatJsonCannotHold) {
  const TemporaryFolder folder;
  const auto refused = [&](const Dataset& data, const std::string& name) {
    const std::string message = error_of([&] { convert(data, folder / name); });
    EXPECT_TRUE(std::filesystem::is_empty(folder / "")) << message;
    return message;
  };
  EXPECT_THAT(refused(digits(), "k\xff.pack"), HasSubstr("the name \"k\\xff.pack\" is not UTF-8"));
  DatasetInfo info = digits().info();
  info.classes[3] = "\xff";
  const Dataset odd(digits().source(), info);
  EXPECT_THAT(refused(odd, "a"), HasSubstr("the class \"\\xff\" is not UTF-8, so dataset.json cannot store it"));
  info.split = "\xff";
  EXPECT_THAT(refused(Dataset(digits().source(), info), "a"), HasSubstr("the name \"\\xff-000000.pack\" is not UTF-8"));
  EXPECT_NO_THROW(convert(odd, folder / "a.pack")) << "names no class";
  EXPECT_NO_THROW(convert(digits(), folder / "k\xff"));
}

TEST(ConvertRefuses, LabelsWithAGapForAFolderOfPictures) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::vector<int64_t>& labels) {
    const std::string message = error_of([&] { convert(pictures_of(labels), folder / "a", {.format = "folder"}); });
    EXPECT_TRUE(std::filesystem::is_empty(folder / "")) << message;
    return message;
  };
  EXPECT_THAT(refused({3, 0, 1, 1}), HasSubstr("labels must be 0 to 3 without a gap, but no label is 2"));
  EXPECT_THAT(refused({1, 1}), HasSubstr("labels must be 0 to 1 without a gap, but no label is 0"));
  EXPECT_EQ(convert(pictures_of({1, 0, 2}), folder / "a", {.format = "folder"}).compared, 3);
}

TEST(ConvertRefuses, SuffixesThatAreNotWritten) {
  const TemporaryFolder folder;
  for (const char* name : {"x.tar.gz", "x.zip", "x.jsonl.gz", "x.mds", "z.parquet", "z.ZIP"}) {
    EXPECT_THAT(error_of([&] { convert(digits(), folder / name); }),
                AllOf(HasSubstr(": no output format uses ."), HasSubstr("The suffixes are: .pack, .tar, .tfrecord"),
                      HasSubstr("set `format`")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
  convert(digits(), folder / "x.zip", {.format = "pack"});
  EXPECT_TRUE(std::filesystem::is_directory(folder / "x.zip")) << "asked for";
  convert(digits(), folder / "Z.PACK");
  EXPECT_TRUE(std::filesystem::is_regular_file(folder / "Z.PACK"));
  convert(digits(), folder / "Z.Tar");
  EXPECT_EQ(open_webdataset({folder / "Z.Tar"})->size(), digits().size());
  convert(numbers(), folder / "Z.NPZ");
  EXPECT_EQ(open(folder / "Z.NPZ").size(), numbers().size());
}

TEST(ConvertRefuses, TextsThatCsvTurnsIntoOtherNumbers) {
  const TemporaryFolder folder;
  const auto to_csv = [&](const std::string& name, const std::string& line) {
    write_text_file(folder / (name + ".jsonl"), line + "\n");
    convert(open(folder / (name + ".jsonl")), folder / (name + ".csv"));
  };
  EXPECT_THAT(error_of([&] { to_csv("power", "{\"x\": \"1e3\", \"y\": 1}"); }),
              HasSubstr("field \"x\" was the text \"1e3\" and is now the number 1000.0"));
  EXPECT_THAT(error_of([&] { to_csv("plus", "{\"x\": \"+5\", \"y\": 1}"); }), HasSubstr("is now the number 5"));
  EXPECT_THAT(error_of([&] { to_csv("zero", "{\"x\": \"1.50\", \"y\": 1}"); }), HasSubstr("is now the number 1.5"));
  EXPECT_NO_THROW(to_csv("same", "{\"x\": \"5\", \"y\": \"007\"}"));
}

TEST(Convert, WholeNumbersOf64BitsComeBackFromCsv) {
  const TemporaryFolder folder;
  const std::string lines = "{\"x\": 18446744073709551615, \"y\": -9223372036854775808}\n{\"x\": 3, \"y\": 4}\n";
  write_text_file(folder / "a.jsonl", lines);
  convert(open(folder / "a.jsonl"), folder / "a.csv", {.verify_all = true});
  convert(open(folder / "a.csv"), folder / "b.jsonl", {.verify_all = true});
  EXPECT_EQ(read_text_file(folder / "b.jsonl"), lines);
}

}  // namespace bellows::data
