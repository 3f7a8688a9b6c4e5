// Files of quantized models.
#include "bellows/quant/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>

#include "bellows/io/tensors/safetensors.h"
#include "tests/quant/networks.h"
#include "tests/quant/support.h"
#include "tests/support/errors.h"

namespace bellows::quant {
namespace {

using samples::batches_of;
using samples::file_named;
using samples::model_of;
using samples::Small;
using ::testing::HasSubstr;

TEST(QuantizedFile, LoadsTheSameModel) {
  const auto batches = batches_of({4, 3, 12, 12});
  const at::Tensor x = torch::randn({2, 3, 12, 12});
  const std::string path = file_named("all");
  for (const Options& options :
       {Options{}, Options{.quantize_sums = false}, Options{.method = Method::dynamic},
        Options{.method = Method::weight_only}, Options{.method = Method::weight_only, .weights = group_scheme(4, 40)},
        Options{.method = Method::weight_only, .weights = group_scheme(3, 40)},
        Options{.method = Method::weight_only,
        .weights = {.bits = 4, .granularity = Granularity::group, .group_size = 40},
        .rounding = Rounding::awq,
        .correct_bias = true},
        Options{.smooth = 0.5}}) {
    const Quantized made = quantize(model_of(Small()), options, batches);
    save_quantized(path, made);
    EXPECT_TRUE(is_quantized_file(path));
    torch::manual_seed(1);
    const Small other;
    for (auto& parameter : other->parameters()) parameter.data().zero_();
    const Quantized loaded = load_quantized(path, model_of(other));
    EXPECT_TRUE(loaded.model.forward(x).equal(made.model.forward(x))) << name_of(options.method);
    EXPECT_EQ(loaded.layers->size(), made.layers->size());
  }
}

TEST(QuantizedFile, KeepsTheScalesOfAttention) {
  const auto batches = batches_of({2, 9, 24});
  const std::string path = file_named("attention");
  const auto version = [&] {
    const std::string text = io::SafetensorsFile(path).metadata().at(0).second;
    return text.substr(text.find("\"version\":"), 11);
  };
  for (const bool quantizes : {false, true}) {
    const Quantized made = quantize(model_of(samples::Attending()), {.quantize_attention = quantizes}, batches);
    save_quantized(path, made);
    EXPECT_EQ(version(), quantizes ? "\"version\":2" : "\"version\":1") << "files without it stay readable everywhere";
    const Quantized loaded = load_quantized(path, model_of(samples::Attending()));
    EXPECT_TRUE(loaded.model.forward(batches[0][0]).equal(made.model.forward(batches[0][0])));
    EXPECT_EQ(loaded.layers->front().result_scale.defined(), quantizes);
  }
  NamedTensors tensors = io::load_safetensors(path);
  const io::SafetensorsMetadata metadata = io::SafetensorsFile(path).metadata();
  for (auto& [name, tensor] : tensors) {
    if (name == "self_key.result_scale") tensor = torch::ones({2});
  }
  io::save_safetensors(path, tensors, {.metadata = metadata});
  EXPECT_THAT(message_of([&] { load_quantized(path, model_of(samples::Attending())); }),
              HasSubstr("that of \"self_key\" is Float [2]"));
}

TEST(QuantizedFile, IsSmall) {
  const torch::nn::Sequential net(torch::nn::Linear(512, 512), torch::nn::ReLU(), torch::nn::Linear(512, 256));
  const auto size_of = [&](const Options& options) {
    const std::string path = file_named("size");
    save_quantized(path, quantize(model_of(net), options, batches_of({2, 512})));
    return static_cast<double>(std::filesystem::file_size(path));
  };
  const double original = 4 * (512 * 512 + 512 + 512 * 256 + 256);
  EXPECT_LE(size_of({}), 0.27 * original);
  EXPECT_LE(size_of({.method = Method::weight_only, .weights = group_scheme(4, 128)}), 0.16 * original);
}

TEST(QuantizedFile, DamagedFiles) {
  const auto batches = batches_of({4, 3, 12, 12});
  const std::string path = file_named("damaged");
  const Quantized made = quantize(model_of(Small()), {}, batches);
  save_quantized(path, made);
  EXPECT_THAT(message_of([&] { load_quantized(path, model_of(torch::nn::Linear(4, 4))); }),
              HasSubstr("does not match the model"));
  const NamedTensors tensors = io::load_safetensors(path);
  const io::SafetensorsMetadata metadata = io::SafetensorsFile(path).metadata();
  const auto loading = [&](NamedTensors changed, io::SafetensorsMetadata description) {
    io::save_safetensors(path, changed, {.metadata = std::move(description)});
    return message_of([&] { load_quantized(path, model_of(Small())); });
  };
  EXPECT_THAT(loading(tensors, {}), HasSubstr("does not contain a quantized model"));
  NamedTensors less = tensors;
  std::erase_if(less, [](const auto& one) { return one.first == "first.weight_scale"; });
  EXPECT_THAT(loading(less, metadata), HasSubstr("the tensor \"first.weight_scale\" is missing"));
  NamedTensors other = tensors;
  for (auto& [name, tensor] : other) {
    if (name == "first.weight") tensor = tensor.narrow(0, 0, 8).contiguous();
  }
  EXPECT_THAT(loading(other, metadata), HasSubstr("expected the tensor \"first.weight\" as Char [16, 3, 3, 3]"));
  for (const char* text : {"", "[]", "{}", R"({"version":4,"layers":[]})", R"({"version":1,"layers":[{}]})",
                           R"({"version":1,"layers":[{"parameter":1}]})"}) {
    const std::string message = loading(tensors, {{"bellows.quantization", text}});
    EXPECT_THAT(message, HasSubstr("quantized layers")) << text;
  }
  std::string text = metadata.front().second;
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"bits\":8", "\"bits\":80"}, {"\"shape\":[16", "\"shape\":[-16"}, {"\"static\"", "\"statik\""}}) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    EXPECT_NE(loading(tensors, {{"bellows.quantization", changed}}), "") << to;
  }
}

}  // namespace
}  // namespace bellows::quant
