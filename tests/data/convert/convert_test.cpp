#include "bellows/data/convert/convert.h"

#include <ATen/ops/randint.h>

#include <atomic>

#include "bellows/data/convert/compare.h"
#include "bellows/data/label.h"
#include "tests/data/convert/convert_support.h"
#include "tests/support/errors.h"

namespace bellows::data {

namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Target {
  const char* name;
  const char* destination;
  const char* format = "";
  bool table = false;
};

void PrintTo(const Target& target, std::ostream* out) {
  *out << target.name;
}

struct ConvertsTo : ::testing::TestWithParam<Target> {};

}  // namespace

TEST_P(ConvertsTo, AndBack) {
  const TemporaryFolder folder;
  const std::string path = folder / GetParam().destination;
  const Dataset source = GetParam().table ? numbers() : digits();
  const ConvertResult result = convert(source, path, {.format = GetParam().format, .verify_all = true, .threads = 2});
  EXPECT_EQ(result.samples, source.size());
  EXPECT_EQ(result.kept, 0);
  EXPECT_FALSE(result.stopped);
  EXPECT_GT(result.bytes, 0);
  const Dataset back = open(path);
  ASSERT_EQ(back.size(), source.size());
  EXPECT_EQ(result.compared, source.size());
  if (std::string(GetParam().name) != "Folder") {
    for (const int64_t i : {int64_t{0}, source.size() / 2, source.size() - 1})
      EXPECT_EQ(difference(source.source()->read(i), back.source()->read(i), BetonOptions().quality), "");
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".packing"));
  EXPECT_FALSE(std::filesystem::exists(path + "/.packing"));
}

INSTANTIATE_TEST_SUITE_P(Convert, ConvertsTo,
                         ::testing::Values(Target{"Pack", "a.pack"}, Target{"Packs", "a", "pack"},
                                           Target{"WebDataset", "a.tar"}, Target{"WebDatasets", "a", "webdataset"},
                                           Target{"Percents", "100%d/a%.tar"}, Target{"Tfrecord", "a.tfrecord"},
                                           Target{"Recordio", "a.rec"}, Target{"Beton", "a.beton"},
                                           Target{"Mds", "a", "mds"}, Target{"Folder", "a", "folder"},
                                           Target{"Arrays", "a.safetensors", "", true},
                                           Target{"Npz", "a.npz", "", true}, Target{"Csv", "a.csv", "", true},
                                           Target{"Jsonl", "a.jsonl", "", true},
                                           Target{"ArrayPack", "a.pack", "", true}),
                         [](const auto& setup) { return setup.param.name; });

TEST(Convert, BytesDoNotDependOnThreads) {
  const TemporaryFolder folder;
  for (const char* format : {"pack", "webdataset"}) {
    std::vector<std::string> results;
    for (const int64_t threads : {1, 2, 5}) {
      const std::string path = folder / c10::str(format, threads);
      convert(digits(), path,
              {.format = format, .picture = parse_recode("12x20", "jpg:80"), .shard_samples = 100, .threads = threads});
      results.push_back(all_bytes(path));
    }
    EXPECT_TRUE(results[0] == results[1] && results[0] == results[2]) << format;
  }
}

TEST(Convert, ShardsAndTheirDescription) {
  const TemporaryFolder folder;
  const ConvertResult result = convert(digits(), folder / "a", {.format = "webdataset", .shard_samples = 100});
  EXPECT_THAT(names_in(folder / "a"),
              ElementsAre("dataset.json", "test-000000.tar", "test-000001.tar", "test-000002.tar", "test-000003.tar"));
  EXPECT_EQ(result.files.size(), 4U);
  const Dataset back = open(folder / "a");
  EXPECT_EQ(back.info().split, "test");
  EXPECT_EQ(back.info().classes, digits().info().classes);
  EXPECT_EQ(back.info().mean, digits().info().mean);
  EXPECT_EQ(back.size(), digits().size());
  EXPECT_EQ(open_webdataset({result.files[3]})->size(), digits().size() - 300);

  const Dataset train = open(kDigits, {.split = "train"});
  convert(train, folder / "a", {.format = "webdataset"});
  EXPECT_EQ(open(folder / "a", {.split = "train"}).size(), train.size()) << "a second split";
  EXPECT_EQ(open(folder / "a", {.split = "test"}).size(), digits().size());
  EXPECT_THAT(error_of([&] { convert(train, folder / "a"); }), HasSubstr("has a split \"train\" already"));
  EXPECT_EQ(open(folder / "a", {.split = "train"}).info().classes, digits().info().classes);

  const ConvertResult sized = convert(digits(), folder / "b", {.shard_bytes = 40'000});
  EXPECT_GT(sized.files.size(), 1U);
  for (size_t i = 0; i + 1 < sized.files.size(); ++i) {
    EXPECT_GE(std::filesystem::file_size(sized.files[i]), 40'000U);
    EXPECT_LE(std::filesystem::file_size(sized.files[i]), 60'000U);
  }
}

TEST(Convert, PicturesAreScaledAndEncoded) {
  using enum c10::ScalarType;
  const TemporaryFolder folder;
  const at::Tensor images = at::randint(256, {3, 20, 30, 4}, at::kByte);
  const Dataset source(from_tensors({{"image", images}, {"label", at::arange(3, at::kLong)}}));
  const auto converted = [&](const std::string& name, const std::string& resize, const std::string& encode) {
    convert(source, folder / name, {.picture = parse_recode(resize, encode)});
    return open_pack({folder / name});
  };
  const SourcePtr jpg = converted("jpg.pack", "10", "jpg:90"), pngs = converted("png.pack", "", "png"),
                  raws = converted("raw.pack", "6x8", "raw"), same = converted("same.pack", "500", "");
  const Sample sample = jpg->read(0);
  ASSERT_TRUE(sample.find("jpg"));
  EXPECT_TRUE(sample.find("label")->is_array);
  const io::ImageInfo info = io::image_info(sample.find("jpg")->bytes);
  EXPECT_EQ(info.format, io::ImageFormat::jpeg);
  EXPECT_EQ(std::vector<int64_t>({info.height, info.width, info.channels}), std::vector<int64_t>({10, 15, 3}));

  const Sample png = pngs->read(1);
  const at::Tensor decoded = io::decode_image(png.find("png")->bytes, io::ColorMode::keep);
  EXPECT_EQ(content(decoded), content(images[1])) << "PNG loses nothing";
  const Sample raw = raws->read(2);
  EXPECT_EQ(raw.find("image")->sizes, c10::IntArrayRef({6, 8, 4}));
  const Sample smaller = same->read(0);
  EXPECT_EQ(smaller.find("image")->sizes, c10::IntArrayRef({20, 30, 4})) << "pictures never grow";
  EXPECT_THAT(error_of([&] { convert(numbers(), folder / "none.pack", {.picture = parse_recode("8", "")}); }),
              HasSubstr("sample 0 has no image to resize or encode"));
}

TEST(Convert, RestartMarkersChangeNoPixel) {
  const TemporaryFolder folder;
  const auto smooth = at::arange(60, at::kByte).view({1, 60, 1, 1}).add(at::arange(80, at::kByte).view({80, 1}));
  const Dataset source(from_tensors({{"image", smooth.expand({2, 60, 80, 3}).contiguous()}}));
  convert(source, folder / "jpg.pack", {.picture = parse_recode("", "jpg")});
  const SourcePtr before = open_pack({folder / "jpg.pack"});
  convert(Dataset(before), folder / "restart.pack", {.picture = parse_recode("", "restart"), .verify_all = true});
  const SourcePtr after = open_pack({folder / "restart.pack"});
  const Sample jpg = before->read(1), restart = after->read(1);
  EXPECT_NE(io::as_text(restart.find("jpg")->bytes), io::as_text(jpg.find("jpg")->bytes));
  EXPECT_EQ(content(io::decode_image(restart.find("jpg")->bytes)), content(io::decode_image(jpg.find("jpg")->bytes)));

  convert(source, folder / "kept.pack", {.picture = parse_recode("", "restart")});
  const SourcePtr kept = open_pack({folder / "kept.pack"});
  EXPECT_TRUE(kept->read(0).find("image")->is_array) << "only JPEGs";
}

TEST(Convert, RecodeOptionsAsTyped) {
  EXPECT_EQ(parse_recode("256", "").shorter, 256);
  EXPECT_EQ(parse_recode("20x30", "").width, 30);
  EXPECT_EQ(parse_recode("", "jpg:77").quality, 77);
  EXPECT_EQ(parse_recode("", "jpeg").quality, 0);
  EXPECT_FALSE(parse_recode("", "keep").active());
  EXPECT_TRUE(parse_recode("", "restart").active());
  for (const char* wrong : {"x", "0", "-3", "20x", "x20", "20x0", "20x30x40", "1e3"})
    EXPECT_THAT(error_of([&] { parse_recode(wrong, ""); }), HasSubstr("`resize`: expected the shorter side")) << wrong;
  for (const char* wrong : {"jpg:", "jpg:0", "jpg:101", "jpg:best"})
    EXPECT_THAT(error_of([&] { parse_recode("", wrong); }), HasSubstr("quality from 1 to 100")) << wrong;
  EXPECT_THAT(error_of([&] { parse_recode("", "pmg"); }), HasSubstr("Did you mean \"png\"?"));
}

// Stopped anywhere, again and again, the same file comes out in the end.
TEST(Convert, StoppedItGoesOn) {
  const TemporaryFolder folder;
  for (const char* format : {"webdataset", "pack", "mds"}) {
    const ConvertOptions options{.format = format,
                                 .picture = parse_recode("100x100", "png"),
                                 .shard_samples = std::string(format) == "mds" ? 0 : 90,
                                 .threads = 2};
    convert(digits(), folder / (std::string(format) + "-whole"), options);
    const std::string path = folder / format;
    bool stopped_once = false;
    for (int64_t stop_at = 40;; stop_at += 97) {
      std::atomic<bool> stop{false};
      const auto hook = [&](int64_t index) {
        if (index == stop_at) stop = true;
      };
      ConvertOptions once = options;
      once.stop = &stop;
      const Dataset hooked(std::make_shared<HookedSource>(digits().source(), hook), digits().info());
      const ConvertResult result = convert(hooked, path, once);
      stopped_once = stopped_once || result.stopped;
      if (!result.stopped) {
        EXPECT_EQ(result.samples, 359);
        EXPECT_EQ(result.kept > 0, std::string(format) != "mds");
        break;
      }
      EXPECT_TRUE(
          std::filesystem::exists(path + (options.shard_samples ? "/.packing/packing.json" : ".packing/packing.json")));
    }
    EXPECT_TRUE(stopped_once);
    EXPECT_TRUE(all_bytes(path) == all_bytes(path + "-whole")) << format;
  }
}

// One file of many pages: what whole pages hold is not written again.
TEST(Convert, APackGoesOnBehindItsLastWholePage) {
  const TemporaryFolder folder;
  const ConvertOptions options{.picture = parse_recode("224x224", "raw"), .threads = 2};  // 50 kB a sample
  convert(digits(), folder / "whole.pack", options);
  std::atomic<bool> stop{false};
  ConvertOptions once = options;
  once.stop = &stop;
  const Dataset hooked(std::make_shared<HookedSource>(digits().source(),
                                                      [&](int64_t i) {
                                                        if (i == 305) stop = true;
                                                      }),
                       digits().info());
  EXPECT_TRUE(convert(hooked, folder / "a.pack", once).stopped);
  EXPECT_TRUE(std::filesystem::exists(folder / "a.pack.packing/a.pack.partial"));
  stop = false;
  const Dataset again(std::make_shared<HookedSource>(digits().source(), [](int64_t) {}), digits().info());
  const ConvertResult result = convert(again, folder / "a.pack", once);
  EXPECT_GE(result.kept, 160);
  EXPECT_GE(result.compared, result.kept) << "what was found is compared with the source";
  EXPECT_TRUE(all_bytes(folder / "a.pack") == all_bytes(folder / "whole.pack"));
}

TEST(Convert, FailureOnTheWayNamesTheSampleAndCanBeMended) {
  const TemporaryFolder folder;
  bool broken = true;
  const auto hook = [&](int64_t index) { TORCH_CHECK_VALUE(!broken || index != 250, "sample 250 is gone"); };
  const Dataset source(std::make_shared<HookedSource>(digits().source(), hook), digits().info());
  const ConvertOptions options{.format = "webdataset", .shard_samples = 100, .threads = 3};
  const std::string staging = folder / "a/.packing";
  EXPECT_THAT(error_of([&] { convert(source, folder / "a", options); }),
              AllOf(HasSubstr("sample 250 is gone"), HasSubstr("The written files are in " + staging)));
  EXPECT_THAT(names_in(folder / "a"), ElementsAre(".packing"));
  EXPECT_THAT(names_in(staging), ElementsAre("packing.json", "test-000000.tar", "test-000001.tar"));
  for (const char* left : {"test-000002.tar.tmp-aB3xYz", "test-000002.tar.unfinished", "packing.json.tmp-aB3xYz"})
    std::ofstream(staging + "/" + left) << "what kill -9 leaves";
  std::ofstream{folder / "a/mine"};
  broken = false;
  const ConvertResult result = convert(source, folder / "a", options);
  EXPECT_EQ(result.kept, 200);
  EXPECT_THAT(names_in(folder / "a"), ElementsAre("dataset.json", "mine", "test-000000.tar", "test-000001.tar",
                                                  "test-000002.tar", "test-000003.tar"));
}

TEST(Convert, OneWriterAtATime) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.pack";
  std::string message;
  const auto hook = [&](int64_t) {
    if (message.empty() && std::filesystem::exists(path + ".packing/packing.json"))
      message = message_of([&] { convert(digits(), path); });
  };
  convert(Dataset(std::make_shared<HookedSource>(digits().source(), hook), digits().info()), path, {.threads = 1});
  EXPECT_THAT(message, HasSubstr("another bellows pack is writing"));
  EXPECT_THAT(names_in(folder / ""), ElementsAre("a.pack"));
}

TEST(Convert, RefusesWhatItDidNotBegin) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file.pack") << "mine";
  EXPECT_THAT(error_of([&] { convert(digits(), folder / "file.pack"); }),
              AllOf(HasSubstr("already exists"), HasSubstr("Choose another name")));
  EXPECT_EQ(read_text_file(folder / "file.pack"), "mine");
  std::filesystem::create_directory(folder / "half.pack.packing");
  std::ofstream(folder / "half.pack.packing/x") << "mine";
  EXPECT_THAT(error_of([&] { convert(digits(), folder / "half.pack"); }), HasSubstr("is not an unfinished conversion"));
  EXPECT_EQ(read_text_file(folder / "half.pack.packing/x"), "mine");
  std::filesystem::create_directory(folder / "full");
  std::ofstream(folder / "full/x") << "mine";
  EXPECT_THAT(error_of([&] { convert(digits(), folder / "full"); }), HasSubstr("already exists"));
  std::filesystem::create_directory(folder / "empty");
  EXPECT_NO_THROW(convert(digits(), folder / "empty"));

  std::atomic<bool> stop{true};
  const ConvertOptions options{.shard_samples = 50, .stop = &stop};
  EXPECT_TRUE(convert(digits(), folder / "a", options).stopped);
  ConvertOptions other = options;
  other.picture.shorter = 4;
  EXPECT_THAT(error_of([&] { convert(digits(), folder / "a", other); }), HasSubstr("with a different picture"));
  EXPECT_THAT(error_of([&] { convert(open(kDigits, {.split = "train"}), folder / "a", options); }),
              AllOf(HasSubstr("with a different source: expected 1438 samples"), HasSubstr("found 359 samples")));
  std::ofstream(folder / "a/.packing/packing.json") << "{";
  EXPECT_THAT(error_of([&] { convert(digits(), folder / "a", options); }), HasSubstr("packing.json is damaged"));
}

TEST(Convert, WrongOptions) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { convert(digits(), folder / "a", {.format = "webdatset"}); }),
              HasSubstr("Did you mean \"webdataset\"?"));
  EXPECT_THAT(error_of([&] { convert(digits(), folder / "a.tar", {.shard_samples = 5}); }), HasSubstr("is one file"));
  EXPECT_THAT(error_of([&] { convert(digits(), folder / "a", {.format = "mds", .shard_samples = 5}); }),
              HasSubstr("a folder in the format mds, which sets the shard size itself"));
  EXPECT_THAT(error_of([&] { convert(numbers(), folder / "a", {.format = "arrays"}); }),
              HasSubstr("name of the destination must end in .safetensors"));
  EXPECT_THAT(error_of([&] { convert(digits().subrange(0, 0), folder / "a.pack"); }), HasSubstr("has no samples"));
  EXPECT_THAT(error_of([&] { convert(digits(), "s3://bucket/a"); }), HasSubstr("is not a local path"));
  EXPECT_TRUE(std::filesystem::is_empty(std::filesystem::path(folder / "x").parent_path()));
}

TEST(Convert, TooLittleRoomIsSaidBefore) {
  const TemporaryFolder folder;
  const Dataset endless(std::make_shared<CountingSource>(int64_t{1} << 50));
  EXPECT_THAT(message_of([&] { convert(endless, folder / "a.pack"); }),
              AllOf(HasSubstr("1125899906842624 samples need about "), HasSubstr(" free. Free some space")));
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
}

TEST(Convert, ARefusalLeavesNothing) {
  const TemporaryFolder folder;
  const auto refused = [&](const Dataset& data, const std::string& path, const ConvertOptions& options) {
    const std::string message = error_of([&] { convert(data, folder / path, options); });
    EXPECT_TRUE(std::filesystem::is_empty(folder / "")) << message;
    return message;
  };
  EXPECT_THAT(refused(digits(), "new/a.csv", {}), HasSubstr("a CSV file stores text and numbers"));
  EXPECT_THAT(refused(digits(), "new/a", {.format = "csv"}), HasSubstr("a CSV file stores text and numbers"));
  EXPECT_THAT(refused(numbers(), "a", {.format = "folder"}), HasSubstr("has no image"));
  EXPECT_THAT(refused(numbers(), "a.pack", {.picture = parse_recode("8", "")}), HasSubstr("no image to resize"));
  for (const char* format : {"webdataset", "jsonl"})
    EXPECT_THAT(
        refused(digits(), "a", {.format = format, .picture = parse_recode("", "raw")}),
        AllOf(HasSubstr("would not be read as an image from " + std::string(format)), HasSubstr("`encode` to png")));
}

TEST(Convert, ALabelAsTextBecomesANumberInArrays) {
  const TemporaryFolder folder;
  convert(digits(), folder / "a.npz", {.picture = parse_recode("", "raw"), .verify_all = true});
  const SourcePtr arrays = open_arrays({folder / "a.npz"}), pictures = digits().source();
  const Sample sample = arrays->read(5), source = pictures->read(5);
  EXPECT_EQ(sample.find("label")->dtype, c10::kLong);
  EXPECT_EQ(static_cast<int64_t>(io::load_little<uint64_t>(sample.find("label")->bytes)),
            parse_label(*source.find("cls"), ""));
}

}  // namespace bellows::data
