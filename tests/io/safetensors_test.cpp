#include "bellows/io/tensors/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "bellows/io/tensors/torch_file.h"
#include "tests/io/support.h"

namespace bellows::io {

using SafetensorsTest = FolderTest;

namespace {

/// A file with this header and `bytes` zero bytes of data.
std::string with_header(const std::string& json, size_t bytes) {
  std::string file;
  append_little<uint64_t>(file, json.size());
  return file + json + std::string(bytes, '\0');
}

std::string header_error(const std::string& json, size_t bytes) {
  const std::string file = with_header(json, bytes);
  return value_error([&] { parse_safetensors_header(as_bytes(file), "x"); });
}

at::Tensor find(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) return tensor;
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

}  // namespace

TEST_F(SafetensorsTest, ReadsTheOfficialWriter) {
  const NamedTensors tensors = load_safetensors(golden("all.safetensors"));
  EXPECT_EQ(tensors.size(), 19U);
  EXPECT_TRUE(find(tensors, "b.weight").equal(at::arange(6, c10::kFloat).reshape({2, 3}).div(4)));
  EXPECT_EQ(find(tensors, "double").item<double>(), 0.1);
  EXPECT_EQ(find(tensors, "double").dim(), 0);
  EXPECT_EQ(find(tensors, "i64").item<int64_t>(), INT64_MIN);
  EXPECT_EQ(find(tensors, "brain").scalar_type(), c10::kBFloat16);
  EXPECT_EQ(find(tensors, "brain").to(c10::kFloat)[1].item<float>(), -3.140625F);
  EXPECT_EQ(find(tensors, "half").to(c10::kFloat)[1].item<float>(), -1.0F);
  EXPECT_EQ(find(tensors, "flag").scalar_type(), c10::kBool);
  EXPECT_EQ(find(tensors, "empty").sizes(), (c10::IntArrayRef{0, 3}));
  EXPECT_EQ(find(tensors, "fp8").to(c10::kFloat)[1].item<float>(), -448.0F);
  EXPECT_EQ(find(tensors, "quote\"d\\\nü").item<float>(), 1.0F);
  EXPECT_EQ(SafetensorsFile(golden("all.safetensors")).metadata(), (SafetensorsMetadata{{"format", "pt ü"}}));
}

TEST_F(SafetensorsTest, WritesTheBytesOfTheOfficialWriter) {
  NamedTensors tensors = load_safetensors(golden("all.safetensors"));
  std::reverse(tensors.begin(), tensors.end());
  save_safetensors(path("all.safetensors"), tensors, {.metadata = {{"format", "pt ü"}}});
  EXPECT_EQ(read_text_file(path("all.safetensors")), read_text_file(golden("all.safetensors")));
}

TEST_F(SafetensorsTest, TensorsAreCopiesThatMayBeWrittenTo) {
  const SafetensorsFile file(golden("small.safetensors"));
  const at::Tensor w = file.tensor("w");
  w.add_(1);
  EXPECT_TRUE(file.tensor("w").equal(at::arange(4, c10::kFloat)));
  EXPECT_EQ(file.bytes(file.entries()[0]).size(), 16U);
  EXPECT_TRUE(has(value_error([&] { file.tensor("W"); }), "no tensor has the name \"W\"; the file has 1."));
}

TEST_F(SafetensorsTest, NoticesAFileThatIsCutWhileItIsOpen) {
  std::filesystem::copy_file(golden("all.safetensors"), path("cut.safetensors"),
                             std::filesystem::copy_options::overwrite_existing);
  const SafetensorsFile file(path("cut.safetensors"));
  std::filesystem::resize_file(path("cut.safetensors"), 0);
  EXPECT_TRUE(has(value_error([&] { file.tensor(file.entries()[0]); }), "cut.safetensors was truncated"));
}

TEST_F(SafetensorsTest, KeepsChannelsLastAndMetadata) {
  const at::Tensor w = at::arange(48, c10::kFloat).reshape({2, 3, 2, 4}).contiguous(c10::MemoryFormat::ChannelsLast);
  const SafetensorsMetadata metadata{{"z", "1"}, {"a", "2"}};
  save_safetensors(path("channels_last.safetensors"), {{"w", w}, {"t", w.transpose(0, 3)}}, {.metadata = metadata});
  const NamedTensors back = load_safetensors(path("channels_last.safetensors"));
  EXPECT_TRUE(find(back, "w").equal(w));
  EXPECT_EQ(find(back, "w").strides(), w.strides());
  EXPECT_TRUE(find(back, "t").equal(w.transpose(0, 3)));
  const SafetensorsMetadata read = SafetensorsFile(path("channels_last.safetensors")).metadata();
  ASSERT_EQ(read.size(), 3U);
  EXPECT_EQ(read[0].first, "z");
  EXPECT_EQ(read[1].first, "a");
  save_safetensors(path("plain.safetensors"), {{"w", w}}, {.keep_memory_format = false});
  EXPECT_TRUE(load_safetensors(path("plain.safetensors"))[0].second.is_contiguous());
  EXPECT_TRUE(SafetensorsFile(path("plain.safetensors")).metadata().empty());
}

TEST_F(SafetensorsTest, WriterChecksItsInput) {
  const at::Tensor one = at::ones({1});
  const auto refuse = [&](const NamedTensors& tensors) {
    return value_error([&] { save_safetensors(path("refused.safetensors"), tensors); });
  };
  EXPECT_TRUE(has(refuse({{"a", one}, {"b", one}, {"a", one.to(c10::kByte)}}), "the name \"a\" occurs twice"));
  EXPECT_TRUE(has(refuse({{"__metadata__", one}}), "cannot be the name"));
  EXPECT_TRUE(has(refuse({{"a", at::Tensor()}}), "an undefined tensor"));
  EXPECT_TRUE(has(refuse({{"a", one.to(c10::kComplexDouble)}}), "which the format does not support"));
  EXPECT_TRUE(has(refuse({{"bad \xff", one}}), "expected UTF-8 text"));
  EXPECT_FALSE(std::filesystem::exists(path("refused.safetensors")));
}

TEST_F(SafetensorsTest, HeaderIsCheckedAsStrictlyAsTheOfficialReaderDoes) {
  const std::string w = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(parse_safetensors_header(as_bytes(with_header(w + "}", 8)), "x").entries.size(), 1U);
  EXPECT_EQ(parse_safetensors_header(as_bytes(with_header("{}", 0)), "x").entries.size(), 0U);
  EXPECT_TRUE(has(header_error(w + "}", 7), "truncated: \"w\" ends at byte"));
  EXPECT_TRUE(has(header_error(w + "}", 9), "1 bytes belong to no tensor"));
  EXPECT_TRUE(has(header_error(w + R"(,"v":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8),
                  "the data before it ends at byte 8"));
  EXPECT_TRUE(has(header_error(w + R"(,"v":{"dtype":"U8","shape":[4],"data_offsets":[9,13]}})", 13),
                  "should be at bytes 9 to 13"));
  EXPECT_TRUE(
      has(header_error(w + R"(,"w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", 16), "each name only once"));
  EXPECT_TRUE(has(header_error(R"({"w":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8),
                  "expected a dtype of the format, found \"F31\""));
  EXPECT_TRUE(has(header_error(R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8),
                  "need 12: the header is corrupt"));
  EXPECT_TRUE(
      has(header_error(R"({"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8), "found a negative number"));
  EXPECT_TRUE(has(header_error(R"({"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0),
                  "whole number of bytes"));
  EXPECT_TRUE(has(header_error(R"({"w":{"dtype":"F32","shape":[2]}})", 8), "some of them missing"));
  EXPECT_TRUE(has(header_error(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", 8), "two offsets"));
  EXPECT_TRUE(has(header_error(R"({"w":3})", 0), "found a number"));
  EXPECT_TRUE(has(header_error(R"({"w":{"dtype":"F32",)", 0), "not valid JSON"));
  EXPECT_TRUE(has(header_error(R"({"__metadata__":{"a":1}})", 0), "found a number"));
  std::string length;
  append_little<uint64_t>(length, 1000);
  EXPECT_TRUE(
      has(value_error([&] { parse_safetensors_header(as_bytes(length + "{}"), "x"); }), "the header takes 1000 bytes"));
}

TEST_F(SafetensorsTest, LoadTensorsGoesByContent) {
  std::filesystem::copy_file(golden("small.safetensors"), path("weights.pt"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(load_tensors(path("weights.pt"))[0].second.equal(at::arange(4, c10::kFloat)));
}

}  // namespace bellows::io
