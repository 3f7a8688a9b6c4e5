// Embeddings in integers: rows, tied weights, files, and embeddings that stay in floating point.
#include "bellows/quant/embedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "bellows/io/tensors/safetensors.h"
#include "bellows/models/bert.h"
#include "bellows/quant/checkpoint.h"
#include "bellows/quant/file.h"
#include "bellows/quant/training/fake_quantizer.h"
#include "tests/quant/networks.h"
#include "tests/quant/support.h"
#include "tests/support/errors.h"

namespace bellows::quant {
namespace {

using samples::file_named;
using samples::layer;
using samples::model_of;
using samples::plain;
using samples::Text;
using samples::texts;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Options int4{.method = Method::weight_only, .weights = group_scheme(4, 16)};

const LayerReport& row(const Quantized& quantized, const std::string& name) {
  for (const LayerReport& one : quantized.report.layers) {
    if (one.name == name) return one;
  }
  throw std::runtime_error("no row " + name);
}

std::vector<std::string> rows_of(const Quantized& quantized) {
  std::vector<std::string> names;
  for (const LayerReport& one : quantized.report.layers) names.push_back(one.name);
  return names;
}

int version_of(const std::string& path) {
  const std::string text = io::SafetensorsFile(path).metadata().at(0).second;
  return text.at(text.find("\"version\":") + 10) - '0';
}

/// Sets the weights of the text model to those that the quantized layers represent.
void set_dequantized(const Text& net, const Quantized& made) {
  const torch::NoGradGuard no_gradients;
  const std::map<std::string, at::Tensor> weights{
      {"words", net->words->weight}, {"positions", net->positions->weight}, {"types", net->types->weight}};
  for (const auto& [name, weight] : weights) {
    QuantizedTensor one = layer(made, name).weight;
    one.values = layer(made, name).integers();
    weight.copy_(one.dequantize());
  }
}

TEST(EmbeddingRows, AreThoseOfTheReference) {
  torch::manual_seed(1);
  const at::Tensor ids = torch::randint(0, 23, {3, 4});
  for (const int64_t columns : {32, 33}) {
    const at::Tensor weight = torch::randn({23, columns});
    for (const Scheme& scheme :
         {weight_scheme(8), weight_scheme(4), weight_scheme(3), group_scheme(4, columns == 32 ? 8 : 11),
          Scheme{.bits = 4, .granularity = Granularity::group, .group_size = columns == 32 ? 32 : 3},
          Scheme{.granularity = Granularity::channel}, Scheme{.bits = 4, .granularity = Granularity::token},
          Scheme{.bits = 4, .is_signed = true, .granularity = Granularity::channel},
          Scheme{.bits = 4,
          .is_signed = true,
          .symmetric = true,
          .narrow_range = true,
          .granularity = Granularity::channel}}) {
      SCOPED_TRACE(c10::str(scheme.to_text(), ", ", columns, " columns"));
      const QuantizedTensor reference = quantize(weight, scheme);
      const EmbeddingRows rows = embedding_rows(reference);
      EXPECT_EQ(rows.halves, scheme.bits == 4 && columns == 32);
      EXPECT_TRUE(rows.integers().equal(reference.values));
      const at::Tensor all = reference.dequantize();
      EXPECT_TRUE(rows.read({.weight = &weight, .indices = &ids}, at::kFloat).equal(all.index({ids})));
      EXPECT_TRUE(
          rows.read({.weight = &weight, .begin = 2, .end = 19, .step = 3}, at::kFloat).equal(all.slice(0, 2, 19, 3)));
      EXPECT_TRUE(
          rows.read({.weight = &weight, .begin = -1, .one_row = true}, at::kBFloat16).equal(all[22].to(at::kBFloat16)));
      EXPECT_EQ(rows.bytes(), scheme.bits == 4 && columns == 32
                                  ? 23 * 16 + rows.scales.numel() * (rows.zero_points.defined() ? 8 : 4)
                                  : 23 * columns + rows.scales.numel() * (rows.zero_points.defined() ? 8 : 4));
    }
  }
  EXPECT_THAT(message_of([&] {
                embedding_rows(quantize(torch::randn({4, 4}), Scheme{}));
              }),
              HasSubstr("expected a matrix with scales per row or group"));
}

TEST(EmbeddingRows, IntegersAreThoseOfPyTorch) {
  const Text net;
  const Quantized made = quantize(model_of(net), {}, texts());
  const QuantizedLayer& one = layer(made, "words");
  const at::Tensor weight = net->words->weight.detach();
  const at::Tensor scale = weight.abs().amax(1).div(127.5).clamp_min(0x1p-23);
  EXPECT_TRUE(one.weight.parameters.scale.equal(scale));
  const at::Tensor expected = at::quantize_per_channel(weight, scale, at::zeros({50}, at::kLong), 0, at::kQInt8);
  EXPECT_TRUE(one.integers().equal(expected.int_repr()));
  const Quantized small = quantize(model_of(net), int4, texts());
  EXPECT_TRUE(layer(small, "words").integers().equal(quantize(weight, int4.weights).values));
}

TEST(QuantizedEmbedding, AllMethodsReadTheSameRows) {
  for (const bool release : {false, true}) {
    for (Options options : {Options{}, Options{.method = Method::dynamic}, Options{.method = Method::weight_only}, int4,
                            Options{.method = Method::weight_only, .weights = weight_scheme(3)}}) {
      Text net;
      const Text other;
      options.skip = {"inner", "head"};
      options.release_weights = release;
      const Quantized made = quantize(model_of(net), options, texts());
      EXPECT_EQ(made.report.quantized(), 3);
      set_dequantized(other, made);
      for (const int64_t length : {11, 1, 16}) {
        const at::Tensor ids = torch::randint(0, 50, {2, length});
        EXPECT_TRUE(made.model.forward(ids).equal(plain(model_of(other), ids)))
            << name_of(options.method) << options.weights.to_text() << length;
      }
    }
  }
}

TEST(QuantizedEmbedding, ReportsAndOptions) {
  const Text net;
  const Quantized made = quantize(model_of(net), {}, texts());
  EXPECT_THAT(rows_of(made), ElementsAre("words", "types", "positions", "inner", "head"));
  EXPECT_EQ(row(made, "words").kind, LayerKind::embedding);
  EXPECT_STREQ(name_of(row(made, "words").kind), "embedding");
  EXPECT_EQ(layer_kind("embedding"), LayerKind::embedding);
  EXPECT_EQ(row(made, "words").bytes_before, 50 * 32 * 4);
  EXPECT_EQ(row(made, "words").bytes_after, 50 * (32 + 4));
  for (const char* name : {"words", "types", "positions"}) {
    EXPECT_GT(row(made, name).weight_sqnr, 40) << name;
    EXPECT_LT(row(made, name).weight_sqnr, 60) << name;
    EXPECT_GT(row(made, name).result_sqnr, 40) << name;
    EXPECT_LT(row(made, name).result_sqnr, 60) << name;
  }
  EXPECT_EQ(row(quantize(model_of(net), int4, texts()), "words").bytes_after, 50 * (16 + 2 * 4));
  EXPECT_THAT(rows_of(quantize(model_of(net), {.quantize_embeddings = false}, texts())), ElementsAre("inner", "head"));
  const Quantized part = quantize(model_of(net), {.skip = {"wor*"}, .min_weights = 100}, texts());
  EXPECT_EQ(row(part, "words").kept, "skipped");
  EXPECT_EQ(row(part, "types").kept, "fewer than 100 weights");
  EXPECT_EQ(row(part, "positions").kept, "");
  const Options groups{.method = Method::weight_only, .weights = group_scheme(4, 5)};
  const Text wide(false, 30);
  const Quantized some =
      quantize(model_of(wide), {.method = Method::weight_only, .weights = group_scheme(4, 10)}, texts());
  EXPECT_TRUE(row(some, "words").kept.empty());
  EXPECT_THAT(message_of([&] { quantize(model_of(net), groups, texts()); }),
              HasSubstr("words: groups of 5 do not divide its 32 columns"));
}

TEST(QuantizedEmbedding, PaddingStaysZero) {
  const std::vector<Scheme> schemes{weight_scheme(8), group_scheme(4, 16), Scheme{.granularity = Granularity::channel}};
  for (const Scheme& scheme : schemes) {
    for (const bool tied : {false, true}) {
      const Text net(tied);
      const auto module = net.ptr();
      Model model("net", module, [module](const at::Tensor& ids) {
        return module->words(ids).sum(-1) + 0 * module->forward(ids).sum(-1);
      });
      model.eval();
      const Quantized made =
          quantize(model, {.method = Method::weight_only, .weights = scheme, .rounding = Rounding::hqq}, texts());
      EXPECT_TRUE(made.model.forward(at::zeros({2, 3}, at::kLong)).equal(at::zeros({2, 3}))) << scheme.to_text();
    }
  }
}

TEST(QuantizedEmbedding, SharesOneWeightWithALinear) {
  for (const Options& options :
       {Options{}, Options{.smooth = 0.5}, Options{.method = Method::dynamic}, Options{.method = Method::weight_only},
        int4, Options{.method = Method::weight_only, .weights = group_scheme(4, 16), .rounding = Rounding::awq}}) {
    for (const bool release : {false, true}) {
      SCOPED_TRACE(c10::str(name_of(options.method), " ", options.weights.to_text(), " smooth ", options.smooth));
      const Text net(true);
      Text other(true);
      Options given = options;
      given.release_weights = release;
      const Quantized made = quantize(model_of(net), given, texts());
      EXPECT_THAT(rows_of(made), ElementsAre("words", "types", "positions", "inner"));
      const QuantizedLayer& words = layer(made, "words");
      EXPECT_EQ(words.kind, LayerKind::linear);
      EXPECT_TRUE(words.reads_rows);
      EXPECT_FALSE(words.divisors.defined());
      EXPECT_EQ(words.rows.values.is_alias_of(words.weight.values), options.method != Method::weight_only);
      set_dequantized(other, made);
      const at::Tensor ids = torch::randint(0, 50, {2, 8});
      const torch::NoGradGuard no_gradients;
      const at::Tensor embedded = other->embed(ids);
      const at::Tensor inner = torch::relu(layer(made, "inner").run(embedded, other->inner->bias, {}));
      EXPECT_LT((made.model.forward(ids) - words.run(inner, {}, {})).abs().max().item<float>(), 1e-5);
      EXPECT_GT(sqnr(plain(model_of(Text(true)), ids), made.model.forward(ids)), options.weights.bits == 8 ? 30 : 13);
    }
  }
  const Options tensor{.method = Method::weight_only, .weights = {.is_signed = true, .symmetric = true}};
  const Quantized made = quantize(model_of(Text(true)), tensor, texts());
  EXPECT_EQ(row(made, "words").kept, "it shares its weight with an embedding, which needs scales for rows");
  EXPECT_EQ(row(made, "types").kept, "") << "embeddings on their own have one scale per row instead";
}

TEST(QuantizedEmbedding, RowsOutOfRange) {
  const Text net;
  const Model model = model_of(net);
  const Quantized made = quantize(model, int4, texts());
  const at::Tensor high = torch::full({1, 3}, 50), negative = torch::full({1, 3}, -1);
  for (const at::Tensor& ids : {high, negative}) {
    const std::string expected = message_of([&] { plain(model, ids); });
    EXPECT_THAT(expected, HasSubstr("index out of range"));
    EXPECT_EQ(message_of([&] { made.model.forward(ids); }), expected);
  }
}

TEST(QuantizedEmbedding, FilesKeepIntegers) {
  const std::string path = file_named("all");
  const at::Tensor ids = torch::randint(0, 50, {2, 9});
  for (const bool tied : {false, true}) {
    for (const Options& options : {Options{}, Options{.method = Method::weight_only}, int4,
                                   Options{.method = Method::weight_only, .weights = weight_scheme(5)}}) {
      const Quantized made = quantize(model_of(Text(tied)), options, texts());
      save_quantized(path, made);
      EXPECT_EQ(version_of(path), 3);
      const Text other(tied);
      for (auto& parameter : other->parameters()) parameter.data().zero_();
      const Quantized loaded = load_quantized(path, model_of(other));
      EXPECT_TRUE(loaded.model.forward(ids).equal(made.model.forward(ids))) << name_of(options.method);
      EXPECT_EQ(layer(loaded, "words").reads_rows, true);
      EXPECT_TRUE(other->positions->weight.isnan().all().item<bool>()) << "the weight is freed";
      EXPECT_EQ(loaded.report.bytes_after, made.report.bytes_after);
    }
  }
  save_quantized(path, quantize(model_of(Text()), {.quantize_embeddings = false}, texts()));
  EXPECT_EQ(version_of(path), 1) << "files without embeddings stay readable everywhere";
}

TEST(QuantizedEmbedding, DamagedFiles) {
  const std::string path = file_named("damaged");
  save_quantized(path, quantize(model_of(Text(true)), {}, texts()));
  const NamedTensors tensors = io::load_safetensors(path);
  const std::string text = io::SafetensorsFile(path).metadata().at(0).second;
  const auto loading = [&](const std::string& from, const std::string& to, const NamedTensors& more = {}) {
    std::string changed = text;
    EXPECT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), from.size(), to);
    NamedTensors all = tensors;
    all.insert(all.end(), more.begin(), more.end());
    io::save_safetensors(path, all, {.metadata = {{"bellows.quantization", changed}}});
    return message_of([&] { load_quantized(path, model_of(Text(true))); });
  };
  EXPECT_THAT(loading("\"version\":3", "\"version\":4"), HasSubstr("it has version 4, expected 1 to 3"));
  EXPECT_THAT(
      loading("\"kind\":\"embedding\",\"method\":\"weight_only\"", "\"kind\":\"embedding\",\"method\":\"static\""),
      HasSubstr("is missing"));
  EXPECT_THAT(loading("\"version\":3", "\"version\":3", {{"words.input_divisors", torch::ones({32})}}),
              HasSubstr("the layer \"words\" (linear, static) cannot have a weight of shape"));
}

/// A model whose last linear registers the weight of the embedding under a second name.
struct TwoNamesImpl : torch::nn::Module {
  TwoNamesImpl() {
    words = register_module("words", torch::nn::Embedding(20, 16));
    weight = register_parameter("head", words->weight);
  }
  at::Tensor forward(const at::Tensor& ids) { return torch::matmul(words(ids), weight.t()); }
  torch::nn::Embedding words{nullptr};
  at::Tensor weight;
};
TORCH_MODULE(TwoNames);

TEST(QuantizedEmbedding, OneTensorWithTwoNames) {
  const std::string path = file_named("names");
  const at::Tensor ids = torch::randint(0, 20, {4, 5});
  const Quantized made = quantize(model_of(TwoNames()), {}, std::vector<std::vector<at::Tensor>>{{ids}});
  EXPECT_TRUE(made.model.named_parameters().empty());
  save_quantized(path, made);
  EXPECT_TRUE(load_quantized(path, model_of(TwoNames())).model.forward(ids).equal(made.model.forward(ids)));
}

/// Matrices whose rows are used in other ways.
struct OtherRowsImpl : torch::nn::Module {
  OtherRowsImpl() {
    torch::manual_seed(2);
    bag = register_module("bag", torch::nn::EmbeddingBag(20, 8));
    limited = register_module("limited", torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 8).max_norm(0.5)));
    pairs = register_parameter("pairs", torch::randn({16, 8}));
    mixed = register_parameter("mixed", torch::randn({20, 8}));
    used = register_module("used", torch::nn::Embedding(20, 8));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = used(ids);
    x = x + limited(ids);
    x = x + torch::embedding(mixed, ids) * mixed.sum();
    return torch::matmul(torch::linear(x, pairs.slice(0, 8, 16)), pairs.slice(0, 0, 8).t()).sum(1) + bag(ids);
  }
  torch::nn::EmbeddingBag bag{nullptr};
  torch::nn::Embedding limited{nullptr}, used{nullptr};
  at::Tensor pairs, mixed;
};
TORCH_MODULE(OtherRows);

TEST(QuantizedEmbedding, OtherUsesOfRowsStayInFloatingPoint) {
  const OtherRows net;
  const Model model = model_of(net);
  const at::Tensor ids = torch::randint(0, 20, {4, 5});
  const std::vector<std::vector<at::Tensor>> batches{{ids}};
  const Quantized made = quantize(model, {}, batches);
  EXPECT_EQ(row(made, "limited").kept, "the weight is also read by aten::embedding_renorm_");
  EXPECT_EQ(row(made, "mixed").kept, "the weight is also read by aten::sum");
  EXPECT_THAT(rows_of(made), ElementsAre("used", "limited", "mixed")) << "slices of `pairs` are multiplied";
  EXPECT_EQ(made.report.quantized(), 1);
  EXPECT_GT(sqnr(plain(model, ids), made.model.forward(ids)), 40);
}

TEST(QuantizedEmbedding, ReleasedAndReplacedWeights) {
  Text net;
  const Model model = model_of(net);
  const Quantized made = quantize(model, {.release_weights = true}, texts());
  const torch::NoGradGuard no_gradients;
  const auto module = net.ptr();
  EXPECT_TRUE(module->words->weight.isnan().all().item<bool>()) << "a wrong result must be visible";
  net->to(torch::kDouble);
  EXPECT_THAT(message_of([&] { made.model.forward(texts()[0][0]); }), HasSubstr("was replaced after quantization"));
}

TEST(QuantizedEmbedding, HalfPrecision) {
  Text net;
  net->to(at::kBFloat16);
  const Quantized made = quantize(model_of(net), {}, texts());
  const at::Tensor ids = texts()[0][0];
  EXPECT_EQ(made.model.forward(ids).scalar_type(), at::kBFloat16);
  EXPECT_GT(sqnr(plain(model_of(net), ids), made.model.forward(ids)), 25);
}

TEST(QuantizedEmbedding, TrainedRangesApplyToTheOtherLayers) {
  Text net;
  const Model model = model_of(net);
  const FakeQuantizer quantizer(model);
  {
    const FakeQuantizerGuard guard(quantizer);
    model.train();
    model.forward(texts()[0][0]).sum().backward();
  }
  model.eval();
  const TrainedLayers trained = quantizer.trained_layers();
  EXPECT_FALSE(trained.contains("words"));
  const Quantized made = quantize(model, {.trained = trained}, texts());
  EXPECT_EQ(made.report.quantized(), 5);
  const QuantizedLayer& inner = layer(made, "inner");
  EXPECT_TRUE(inner.input.scale.equal(quantized_input("inner", trained.at("inner"), inner.kind).parameters.scale));
}

TEST(QuantizedEmbedding, FilesOfOtherProjectsHaveNone) {
  const auto config = parse_quantization_config(
      R"({"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": true, "desc_act": false})");
  const Options options{.method = Method::weight_only, .weights = config.weights, .skip = {"head"}};
  EXPECT_THAT(message_of([&] { to_checkpoint(quantize(model_of(Text()), options, texts()), config); }),
              HasSubstr("the layer \"words\": it is an embedding. Quantize with `quantize_embeddings` set to false"));
  EXPECT_THAT(message_of([&] {
                Options tied = options;
                tied.skip = {"types", "positions"};
                to_checkpoint(quantize(model_of(Text(true)), tied, texts()), config);
              }),
              HasSubstr("the layer \"words\": it shares its weight with an embedding"));
}

/// Bytes of the tensors of a text model in a file: matrices are integers with scales, all other tensors are fp32.
double expected_bytes(const Model& model, const Scheme& scheme) {
  double bytes = 0;
  for (const auto& [name, tensor] : model.state_dict()) {
    const auto numbers = static_cast<double>(tensor.numel());
    const double group = scheme.granularity == Granularity::group ? static_cast<double>(scheme.group_size)
                                                                  : static_cast<double>(tensor.size(-1));
    bytes += tensor.dim() == 2 ? numbers * scheme.bits / 8 + 4 * numbers / group : 4 * numbers;
  }
  return bytes;
}

TEST(QuantizedEmbedding, BertFilesAreSmall) {
  // A small BERT with the proportions of BERT-base: 22 % of the weights are embeddings. The sizes of its file confirm the
  // formula, which then holds for the shapes of BERT-base.
  models::BertOptions small;
  small.vocab_size = 1908;
  small.hidden_size = 192;
  small.num_hidden_layers = 3;
  small.num_attention_heads = 3;
  small.intermediate_size = 768;
  small.max_position_embeddings = 32;
  Model model = models::bert(small);
  model.eval();
  const std::vector<std::vector<at::Tensor>> calibration{{torch::randint(1, 1908, {2, 16})}};
  const double original = 4. * static_cast<double>([&] {
                            int64_t numbers = 0;
                            for (const auto& [name, tensor] : model.state_dict()) numbers += tensor.numel();
                            return numbers;
                          }());
  const std::string path = file_named("bert");
  const auto check = [&](const Options& options, double largest) {
    const Quantized made = quantize(model, options, calibration);
    save_quantized(path, made);
    const auto size = static_cast<double>(std::filesystem::file_size(path));
    EXPECT_NEAR(size, expected_bytes(model, options.weights), 0.012 * original) << "JSON and scales of activations";
    EXPECT_NEAR(static_cast<double>(made.report.bytes_after), expected_bytes(model, options.weights), 0.004 * original);
    EXPECT_LE(expected_bytes(model, options.weights), (largest + 0.01) * original);
    return size / original;
  };
  check({}, 0.27);
  check({.method = Method::weight_only}, 0.27);
  check({.method = Method::weight_only, .weights = group_scheme(4, 64)}, 0.16);

  const models::BertOptions base = models::bert_base();
  const double width = static_cast<double>(base.hidden_size), layers = static_cast<double>(base.num_hidden_layers);
  const auto ratio = [&](double bits, double group) {
    const double embeddings =
        width * static_cast<double>(base.vocab_size + base.max_position_embeddings + base.type_vocab_size);
    const double matrices =
        embeddings + width * width + layers * width * (4 * width + 2 * static_cast<double>(base.intermediate_size));
    const double vectors = 2 * width + width + layers * (9 * width + static_cast<double>(base.intermediate_size));
    return (matrices * (bits / 8 + 4 / group) + 4 * vectors) / (4 * (matrices + vectors));
  };
  EXPECT_LE(ratio(8, width), 0.27);
  EXPECT_LE(ratio(4, 64), 0.16);
}

}  // namespace
}  // namespace bellows::quant
