#include "bellows/data/formats/beton_source.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "bellows/data/dataset.h"
#include "bellows/data/formats/webdataset.h"
#include "bellows/io/images/image.h"
#include "bellows/io/records/beton.h"
#include "tests/interop/beton_support.h"
#include "tests/io/support.h"

namespace bellows::data {

using BetonSourceTest = io::FolderTest;

namespace {

using io::has;
using io::value_error;

const std::string kDigitShard = BELLOWS_SOURCE_DIR "/data/digits/test-000.tar";

/// A sample of arrays and files that the test owns.
struct OwnSample {
  std::vector<std::pair<std::string, std::string>> files;
  std::vector<std::pair<std::string, at::Tensor>> arrays;
  Sample view() const {
    Sample sample;
    for (const auto& [name, content] : files) {
      Field& field = sample.fields.emplace_back();
      field.name = name;
      field.bytes = io::as_bytes(content);
    }
    for (const auto& [name, array] : arrays) sample.fields.push_back(Field::of(name, array));
    return sample;
  }
};

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, at::IntArrayRef sizes) {
  at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
  std::copy(values.begin(), values.end(), tensor.data_ptr<T>());
  return tensor;
}

void convert(const SourcePtr& source, const std::string& path, const BetonOptions& options = {}) {
  const auto sink = beton_sink(path, options);
  Sample sample;
  for (int64_t i = 0; i < source->size(); ++i) {
    source->read(i, sample);
    sink->write(sample);
  }
  sink->close();
}

std::vector<Batch> batches(const Dataset& dataset) {
  Loader loader = dataset.loader();
  std::vector<Batch> all;
  while (auto batch = loader.next()) all.push_back(std::move(*batch));
  return all;
}

/// A gradient of height × width, RGB.
at::Tensor gradient(int64_t height, int64_t width) {
  at::Tensor image = at::empty({height, width, 3}, at::TensorOptions().dtype(c10::kByte));
  auto* out = image.data_ptr<uint8_t>();
  for (int64_t i = 0; i < image.numel(); ++i) out[i] = static_cast<uint8_t>(i / width);
  return image;
}

std::string file_text(const std::string& path) {
  return read_text_file(path);
}

}  // namespace

TEST_F(BetonSourceTest, ADataSetComesOutAsItWentIn) {
  const SourcePtr digits = open_webdataset({kDigitShard});
  convert(digits, path("digits.beton"), {.images = BetonImages::raw, .page_size = 2 << 20});
  const SourcePtr source = open_beton({path("digits.beton")});
  ASSERT_EQ(source->size(), digits->size());
  EXPECT_TRUE(source->stored());
  const Sample first = source->read(0);
  EXPECT_EQ(first.find("image")->sizes, (c10::IntArrayRef{8, 8, 3}));
  EXPECT_TRUE(first.find("label")->is_array);
  const auto pipeline = [](const SourcePtr& from) {
    return Dataset(from).decode("rgb").shuffle(3).flip().num_classes(10).normalize({0.5}, {0.25}).batch(50);
  };
  const std::vector<Batch> expected = batches(pipeline(digits)), found = batches(pipeline(source));
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i]["image"], expected[i]["image"])) << i;
    EXPECT_TRUE(at::equal(found[i]["label"], expected[i]["label"])) << i;
  }
}

TEST_F(BetonSourceTest, BlocksArePages) {
  const io::Bytes golden = io::beton_golden("pages");
  write_text_file(path("pages.beton"), io::as_text(golden));
  EXPECT_EQ(open_beton({path("pages.beton")})->size(), 6);
  const OwnSample one{{}, {{"x", tensor_of(std::vector<double>(100'000, 1.0), {100'000})}}};
  const auto sink = beton_sink(path("ordered.beton"), {.page_size = 2 << 20});  // two of 800,000 bytes to a page
  for (int i = 0; i < 7; ++i) sink->write(one.view());
  sink->close();
  const SourcePtr twice = open_beton({path("ordered.beton"), path("ordered.beton")});
  EXPECT_EQ(twice->size(), 14);
  EXPECT_EQ(twice->block_starts(), (std::vector<int64_t>{0, 2, 4, 6, 7, 9, 11, 13}));
}

TEST_F(BetonSourceTest, ChoosesHowPicturesAreStored) {
  const at::Tensor small = gradient(4, 6), large = gradient(40, 60);
  const OwnSample samples[] = {{{}, {{"image", small}}}, {{}, {{"image", large}}}};
  const auto kinds = [&](const BetonOptions& options, int repeats) {
    const auto sink = beton_sink(path("kinds.beton"), options);
    for (int i = 0; i < repeats; ++i) {
      for (const OwnSample& sample : samples) sink->write(sample.view());
    }
    sink->close();
    std::string result;
    const io::BetonReader reader(path("kinds.beton"));
    for (int64_t i = 0; i < reader.size(); ++i) result += reader.read(i, 0).is_jpeg ? 'j' : 'r';
    return result;
  };
  EXPECT_EQ(kinds({.images = BetonImages::raw}, 1), "rr");
  EXPECT_EQ(kinds({.images = BetonImages::jpg}, 1), "jj");
  EXPECT_EQ(kinds({.images = BetonImages::smart, .smart_bytes = 1000}, 1), "rj");
  const std::string some = kinds({.images = BetonImages::proportion, .jpg_probability = 0.25, .seed = 5}, 200);
  EXPECT_NEAR(static_cast<double>(std::count(some.begin(), some.end(), 'j')), 100, 30);
  EXPECT_EQ(kinds({.images = BetonImages::proportion, .jpg_probability = 0.25, .seed = 5}, 200), some);
  EXPECT_NE(kinds({.images = BetonImages::proportion, .jpg_probability = 0.25, .seed = 6}, 200), some);
}

TEST_F(BetonSourceTest, KeepsTheBytesOfJpegsThatFfcvCanDecode) {
  const auto first_image = [&](const std::string& name, const BetonOptions& options) {
    const OwnSample sample{{{"jpg", file_text(io::golden("images/" + name))}}, {}};
    const auto sink = beton_sink(path("one.beton"), options);
    sink->write(sample.view());
    sink->close();
    const SourcePtr source = open_beton({path("one.beton")});
    const Sample read = source->read(0);
    const Field& image = *read.find("image");
    return std::pair(std::string(io::as_text(image.bytes)),
                     image.is_array ? image.sizes.vec() : std::vector<int64_t>{});
  };
  for (const std::string name : {"420.jpg", "gray.jpg", "progressive.jpg"})
    EXPECT_EQ(first_image(name, {}).first, file_text(io::golden("images/" + name))) << name;
  const std::string inks = first_image("cmyk.jpg", {}).first;
  EXPECT_NE(inks, file_text(io::golden("images/cmyk.jpg")));
  EXPECT_EQ(io::image_info(io::as_bytes(inks)).channels, 3);
  const io::ImageInfo info = io::image_info(io::as_bytes(file_text(io::golden("images/420.jpg"))));
  const auto scaled = first_image("420.jpg", {.images = BetonImages::raw, .max_resolution = 7}).second;
  const int64_t longer = std::max(info.height, info.width);
  EXPECT_EQ(scaled, (std::vector<int64_t>{info.height * 7 / longer, info.width * 7 / longer, 3}));
  const auto whole = first_image("420.jpg", {.images = BetonImages::raw, .max_resolution = 70000});
  const at::Tensor pixels = io::decode_image(io::as_bytes(file_text(io::golden("images/420.jpg"))));
  EXPECT_TRUE(whole.first == std::string(static_cast<const char*>(pixels.const_data_ptr()), pixels.nbytes()));
}

TEST_F(BetonSourceTest, MapsAllKindsOfFields) {
  const OwnSample sample{{{"cls", " 7\n"}, {"json", "{\"a\": 1}"}, {"txt", ""}},
                         {{"small", tensor_of<int8_t>({-3}, {})},
                          {"half", tensor_of<c10::Half>({c10::Half(0.5f)}, {})},
                          {"image", gradient(2, 3).slice(2, 0, 1).contiguous()},
                          {"box", tensor_of<int16_t>({1, 2, 3, 4}, {2, 2})}}};
  const auto sink = beton_sink(path("all.beton"), {.images = BetonImages::raw});
  sink->write(sample.view());
  sink->close();
  const SourcePtr source = open_beton({path("all.beton")});
  const Sample read = source->read(0);
  const auto number = [&](const char* name, auto value) {
    const Field* field = read.find(name);
    std::memcpy(&value, field->bytes.data(), sizeof(value));
    EXPECT_TRUE(field->is_array && field->sizes.empty()) << name;
    return value;
  };
  EXPECT_EQ(number("label", int64_t()), 7);
  EXPECT_EQ(number("small", int64_t()), -3);
  EXPECT_EQ(number("half", double()), 0.5);
  EXPECT_EQ(io::as_text(read.find("json")->bytes), "{\"a\": 1}");
  EXPECT_EQ(read.find("txt")->bytes.size(), 0U);
  EXPECT_EQ(read.find("image")->sizes, (c10::IntArrayRef{2, 3, 3}));
  EXPECT_EQ(io::as_text(read.find("image")->bytes), std::string("\0\0\0\1\1\1\2\2\2\3\3\3\4\4\4\5\5\5", 18));
  EXPECT_EQ(read.find("box")->dtype, c10::ScalarType::Short);
  EXPECT_EQ(read.find("box")->sizes, (c10::IntArrayRef{2, 2}));
  const MappedFile file(path("all.beton"));
  for (const Field& field : read.fields)
    EXPECT_EQ(io::as_text(file.bytes().subspan(field.offset, field.bytes.size())), io::as_text(field.bytes));
}

TEST_F(BetonSourceTest, SinkSaysWhatDoesNotFit) {
  const OwnSample first{{{"cls", "1"}, {"txt", "a"}}, {{"box", tensor_of<float>({1, 2}, {2})}}};
  const auto sink = beton_sink(path("bad.beton"));
  EXPECT_TRUE(has(value_error([&] { sink->close(); }), "no sample was written"));
  sink->write(first.view());
  const auto write_error = [&](const OwnSample& sample) { return value_error([&] { sink->write(sample.view()); }); };
  EXPECT_TRUE(has(write_error({{{"cls", "1"}, {"txt", "a"}}, {}}),
                  "the sample has no field \"box\", which the first sample has"));
  EXPECT_TRUE(
      has(write_error({{{"cls", "x"}, {"txt", "a"}}, first.arrays}), "beton_sink: sample 0: expected an integer"));
  EXPECT_TRUE(has(write_error({{{"cls", "1"}, {"txt", "a"}, {"more", "b"}}, first.arrays}),
                  "beton_sink: sample 0: the sample has the field \"more\", which the first sample does not have"));
  EXPECT_TRUE(has(write_error({first.files, {{"box", tensor_of<float>({1, 2}, {2, 1})}}}), "a different type or size"));
  sink->write(first.view());
  sink->close();
  EXPECT_EQ(open_beton({path("bad.beton")})->size(), 2);

  EXPECT_TRUE(has(value_error([&] { beton_sink(path("o"), {.quality = 0}); }), "a quality from 1 to 100"));
  EXPECT_TRUE(has(value_error([&] { beton_sink(path("o"), {.jpg_probability = 2}); }), "jpg_probability in [0, 1]"));
  EXPECT_TRUE(has(value_error([&] { beton_sink(path("o"), {.max_resolution = -1}); }), "of at least 0, got -1"));
  EXPECT_TRUE(has(value_error([&] { beton_sink(path("o"), {.page_size = 1000}); }), "a power of two"));
  EXPECT_FALSE(std::filesystem::exists(path("o")));
}

TEST_F(BetonSourceTest, SaysWhichFileAndSample) {
  EXPECT_TRUE(has(value_error([] { open_beton({}); }), "at least one file"));
  EXPECT_TRUE(has(value_error([] { open_beton({"/no/such.beton"}); }), "No such file"));
  const io::Bytes numbers = io::beton_golden("numbers"), narrow = io::beton_golden("narrow");
  write_text_file(path("numbers.beton"), io::as_text(numbers));
  write_text_file(path("narrow.beton"), io::as_text(narrow));
  EXPECT_TRUE(has(value_error([&] {
                    open_beton({path("numbers.beton"), path("narrow.beton")});
                  }),
                  "has different fields"));
  const SourcePtr two = open_beton({path("narrow.beton"), path("narrow.beton")});
  std::filesystem::resize_file(path("narrow.beton"), 4096);
  const std::string message = value_error([&] { two->read(4); });
  EXPECT_TRUE(has(message, "read: sample 4: ") && has(message, "narrow.beton was truncated")) << message;
}

}  // namespace bellows::data
