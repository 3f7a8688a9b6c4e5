#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "bellows/core/seed.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/models/bert.h"
#include "bellows/models/blocks.h"
#include "bellows/models/config.h"
#include "bellows/models/distilbert.h"
#include "bellows/models/encoder_decoder.h"
#include "bellows/models/gpt.h"
#include "bellows/models/registry.h"
#include "bellows/models/resnet.h"
#include "bellows/models/unet.h"
#include "bellows/models/weights.h"
#include "bellows/system/file.h"
#include "tests/models/golden.h"
#include "tests/models/small_models.h"
#include "tests/support/errors.h"

namespace bellows::models {

namespace {

using testing::HasSubstr;

/// Every parameter that the file has holds the formula's values.
void expect_formula(const Model& model, const Model& fresh) {
  set_formula_weights(fresh);
  const NamedTensors ours = model.named_parameters(), expected = fresh.named_parameters();
  for (size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(torch::equal(ours[i].second, expected[i].second)) << ours[i].first;
}

NamedTensors without_prefix(const NamedTensors& tensors, const std::string& prefix) {
  NamedTensors result;
  result.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    result.emplace_back(name.starts_with(prefix) ? name.substr(prefix.size()) : name, tensor);
  }
  return result;
}

/// As files of 2019 call their tensors, with all that they repeat.
NamedTensors as_old_file(const NamedTensors& tensors) {
  NamedTensors result;
  result.reserve(tensors.size() + 3);
  for (auto [name, tensor] : tensors) {
    for (const auto& [now, old] :
         {std::pair("LayerNorm.weight", "LayerNorm.gamma"), {"LayerNorm.bias", "LayerNorm.beta"}}) {
      if (name.ends_with(now)) name.replace(name.size() - std::string(now).size(), std::string::npos, old);
    }
    if (name.ends_with("word_embeddings.weight")) result.emplace_back("cls.predictions.decoder.weight", tensor);
    if (name == "cls.predictions.bias") result.emplace_back("cls.predictions.decoder.bias", tensor);
    result.emplace_back(name, tensor);
  }
  result.emplace_back("bert.embeddings.position_ids", at::arange(12).unsqueeze(0));
  return result;
}

int64_t parameter_count(const Model& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

const at::Tensor ids = formula_labels("ids", 18, 29).view({2, 9}) + 1;

}  // namespace

TEST(TransformerWeights, HuggingFacesFilesLoadAsTheyAre) {
  const Model masked = bert(small_bert(TextHead::masked_lm));
  load_weights(masked, io::load_tensors(golden::path("bert_masked_lm.safetensors")));
  expect_formula(masked, bert(small_bert(TextHead::masked_lm)));
  const Model classifier = distilbert(small_distilbert());
  load_weights(classifier, io::load_tensors(golden::path("distilbert_classifier.safetensors")));
  expect_formula(classifier, distilbert(small_distilbert()));
  const Model language = gpt(small_gpt());
  load_weights(language, io::load_tensors(golden::path("gpt.safetensors")));
  expect_formula(language, gpt(small_gpt()));
}

/// A folder of save_pretrained() is enough to make its model.
TEST(TransformerWeights, ConfigsSayTheShapes) {
  BertOptions masked = read_bert_config(golden::path("bert_masked_lm.config.json"));
  masked.head = TextHead::masked_lm;
  load_weights(bert(masked), io::load_tensors(golden::path("bert_masked_lm.safetensors")));
  EXPECT_EQ(masked.num_labels, 3);
  EXPECT_EQ(masked.classifier_dropout, std::nullopt);
  const Model classifier = distilbert(read_distilbert_config(golden::path("distilbert_classifier.config.json")));
  load_weights(classifier, io::load_tensors(golden::path("distilbert_classifier.safetensors")));
  const GptOptions options = read_gpt_config(golden::path("gpt.config.json"));
  load_weights(gpt(options), io::load_tensors(golden::path("gpt.safetensors")));
  EXPECT_EQ(options.n_inner, std::nullopt);

  const std::string path = testing::TempDir() + c10::str("config_", getpid(), ".json");
  const auto said_of = [&](const std::string& text) {
    write_text_file(path, text);
    return message_of([&] { read_bert_config(path); });
  };
  EXPECT_THAT(said_of("{}"), "no error");
  EXPECT_THAT(said_of("[1]"), HasSubstr("expected a JSON object, found \"[1]\""));
  EXPECT_THAT(said_of("{,"), HasSubstr("found invalid JSON"));
  EXPECT_THAT(said_of(R"({"model_type": "roberta"})"), HasSubstr("model_type = \"bert\""));
  EXPECT_THAT(said_of(R"({"hidden_size": "8"})"), HasSubstr("hidden_size to be a whole number, found \"8\""));
  EXPECT_THAT(said_of(R"({"position_embedding_type": "relative_key"})"), HasSubstr("found \"relative_key\""));
  std::filesystem::remove(path);
  EXPECT_THAT(message_of([&] { read_gpt_config(path); }), HasSubstr(path));
}

TEST(TransformerWeights, PrefixesOldNamesAndTiedCopiesAreUnderstood) {
  const NamedTensors file = io::load_tensors(golden::path("bert_masked_lm.safetensors"));
  const Model old = bert(small_bert(TextHead::masked_lm));
  load_weights(old, as_old_file(file));
  expect_formula(old, bert(small_bert(TextHead::masked_lm)));

  const LoadReport onto_base = load_weights(bert(small_bert(TextHead::hidden_states)), file, /*strict=*/false);
  EXPECT_THAT(onto_base.missing, testing::UnorderedElementsAre("pooler.dense.weight", "pooler.dense.bias"));
  EXPECT_EQ(onto_base.unexpected.size(), 5u) << onto_base.to_string();  // the head

  const LoadReport onto_classifier = load_weights(bert(small_bert()), without_prefix(file, "bert."), /*strict=*/false);
  EXPECT_THAT(onto_classifier.missing, testing::SizeIs(4));  // pooler and classifier
  EXPECT_THAT(message_of([&] { load_weights(bert(small_bert()), file); }), HasSubstr("classifier.weight"));

  NamedTensors plain = without_prefix(io::load_tensors(golden::path("gpt.safetensors")), "transformer.");
  plain.emplace_back("h.0.attn.bias", at::ones({1, 1, 12, 12}).tril());
  const Model language = gpt(small_gpt());
  load_weights(language, plain);
  expect_formula(language, gpt(small_gpt()));
  NamedTensors twice = plain;
  twice.emplace_back("transformer.ln_f.bias", at::ones({8}));
  EXPECT_THAT(message_of([&] { load_weights(language, twice); }),
              testing::AllOf(HasSubstr("got two"), HasSubstr("\"transformer.ln_f.bias\"")));
  plain.emplace_back("lm_head.weight", at::ones({30, 8}));
  EXPECT_THAT(message_of([&] { load_weights(language, plain); }), HasSubstr("trained without the tie"));
}

TEST(Transformer, MaskIsGivenOrFoundInThePadding) {
  at::Tensor padded = ids.clone();
  padded.slice(1, 6).zero_();
  for (const Model& model : {bert(small_bert()), distilbert(small_distilbert())}) {
    model.eval();
    const at::Tensor found = model.forward(padded);
    EXPECT_TRUE(
        torch::equal(found, model.forward({{"input_ids", padded}, {"attention_mask", padded.ne(0)}}).front().second));
    EXPECT_TRUE(at::allclose(found, model.forward(ids.slice(1, 0, 6)), 1e-5, 1e-6)) << "nobody looks at padding";
    EXPECT_TRUE(at::isfinite(model.forward(at::zeros_like(ids))).all().item<bool>());
  }
  BertOptions options = small_bert();
  options.mask_padding = false;
  const Model open = bert(options);
  open.eval();
  EXPECT_FALSE(at::allclose(open.forward(padded),
                            open.forward({{"input_ids", padded}, {"attention_mask", padded.ne(0)}}).front().second));
}

TEST(Transformer, GptSeesNothingOfWhatComes) {
  const Model model = gpt(small_gpt());
  set_formula_weights(model);
  model.eval();
  at::Tensor other = ids.clone();
  other.slice(1, 5).fill_(7);
  EXPECT_TRUE(at::allclose(model.forward(ids).slice(1, 0, 5), model.forward(other).slice(1, 0, 5), 1e-5, 1e-6));
}

TEST(Transformer, ForecastsStepsFromThoseBeforeThem) {
  const EncoderDecoderOptions three = {.in_features = 2, .horizon = 3, .d_model = 8, .nhead = 2};
  EncoderDecoderOptions one = three;
  one.horizon = 1;
  const Model longer = encoder_decoder(three), shorter = encoder_decoder(one);
  load_state_dict(shorter, longer.state_dict());
  longer.eval();
  shorter.eval();
  const at::Tensor x = formula_uniform("x", {2, 5, 2}).to(at::kFloat);
  EXPECT_TRUE(at::allclose(longer.forward(x).slice(1, 0, 1), shorter.forward(x), 1e-5, 1e-6));
}

TEST(Transformer, DropsInTrainingAndStartsAsItsPapersSay) {
  seed_everything(3);
  BertOptions options = small_bert();
  options.vocab_size = 4000;
  const Model model = bert(options);
  EXPECT_FALSE(torch::equal(model.forward(ids), model.forward(ids)));
  model.eval();
  EXPECT_TRUE(torch::equal(model.forward(ids), model.forward(ids)));
  const at::Tensor words = model.named_parameters()[0].second;
  EXPECT_NEAR(words.std().item<double>(), 0.02, 5e-4);
  EXPECT_EQ(words[0].abs().sum().item<double>(), 0) << "the padding's embedding";
  for (const auto& [name, parameter] :
       gpt({.vocab_size = 30, .n_embd = 64, .n_layer = 2, .n_head = 2}).named_parameters()) {
    if (name.ends_with("mlp.c_proj.weight")) {
      EXPECT_NEAR(parameter.std().item<double>(), 0.01, 5e-4) << name;
    }
  }
}

TEST(Transformer, HiddenStatesAndTheEmbeddingMakeTheScores) {
  const Model scores = bert(small_bert(TextHead::masked_lm)), hidden = bert(small_bert(TextHead::masked_lm_hidden));
  load_state_dict(hidden, scores.state_dict());
  scores.eval();
  hidden.eval();
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : hidden.state_dict()) state[name] = tensor;
  const at::Tensor composed = at::linear(hidden.forward(ids), state.at("bert.embeddings.word_embeddings.weight"),
                                         state.at("cls.predictions.bias"));
  EXPECT_TRUE(torch::equal(composed, scores.forward(ids)));
}

TEST(Transformer, BadInputIsSaidInWords) {
  const Model model = bert(small_bert());
  EXPECT_THAT(message_of([&] {
                model.forward(at::zeros({2, 1, 8, 8}));
              }),
              HasSubstr("bert: expected token ids, int64 [N, T], got Float [2, 1, 8, 8]"));
  EXPECT_THAT(message_of([&] {
                model.forward(at::zeros({2, 13}, at::kLong));
              }),
              HasSubstr("1 to 12 tokens per sample"));
  EXPECT_THAT(message_of([&] { model.forward(ids + 28); }), HasSubstr("token ids from 0 to 29"));
  EXPECT_THAT(message_of([&] {
                model.forward({{"input_ids", ids}, {"token_type_ids", ids}});
              }),
              HasSubstr("token types from 0 to 1"));
  EXPECT_THAT(message_of([&] { gpt(small_gpt()).forward(ids - 30); }), HasSubstr("gpt: expected token ids"));
  EXPECT_THAT(message_of([&] {
                model.forward({{"input_ids", ids}, {"attention_mask", at::ones({2, 8}, at::kLong)}});
              }),
              HasSubstr("got Long [2, 8]"));
  EXPECT_THAT(message_of([] { bert({.num_attention_heads = 5}); }),
              HasSubstr("heads that divide the width of 768, got 5"));
  EXPECT_THAT(message_of([] { gpt({.n_layer = 0}); }), HasSubstr("gpt: expected n_layer from 1 to 4096, got 0"));
  EXPECT_THAT(message_of([] { gpt({.attn_pdrop = 1}); }), HasSubstr("dropout in [0, 1), got 1"));
  EXPECT_THAT(message_of([] { distilbert({.head = TextHead::pooled}); }), HasSubstr("has no pooler"));
  EXPECT_THAT(message_of([] {
                bert({.hidden_size = 4, .num_hidden_layers = 1, .num_attention_heads = 1, .hidden_act = "swish"});
              }),
              HasSubstr("\"gelu_new\" or \"relu\", got \"swish\""));
  EXPECT_THAT(message_of([] { encoder_decoder({.d_model = 9, .nhead = 1}); }), HasSubstr("an even d_model"));
  EXPECT_THAT(message_of([] {
                encoder_decoder({.in_features = 2, .start_steps = 4}).forward(at::zeros({1, 3, 2}));
              }),
              HasSubstr("at least 4 steps, got [1, 3, 2]"));
  EXPECT_THAT(message_of([] {
                unet({.channels = 4, .depth = 3}).forward(at::zeros({1, 3, 7, 9}));
              }),
              HasSubstr("of at least 8 x 8"));
}

/// Each block goes through the runner once, and to the same bits.
TEST(Blocks, AreRunByWhoeverAsks) {
  const auto& models = registry();
  for (const auto& [model, x, count] :
       {std::tuple(digits_resnet({.width = 4}), at::Tensor(at::rand({2, 1, 8, 8})), 3),
        std::tuple(unet({.channels = 4, .depth = 2}), at::Tensor(at::rand({2, 3, 8, 8})), 5),
        std::tuple(bert(small_bert()), ids, 2), std::tuple(distilbert(small_distilbert()), ids, 2),
        std::tuple(gpt(small_gpt()), ids, 2),
        std::tuple(encoder_decoder({.d_model = 8, .nhead = 2}), at::Tensor(at::rand({2, 4, 1})), 6)}) {
    model.eval();
    const at::Tensor expected = model.forward(x);
    int calls = 0;
    EXPECT_EQ(run_blocks_by(model,
                            [&calls](const Block& block, const at::Tensor& y) {
                              ++calls;
                              return block(y);
                            }),
              count);
    EXPECT_TRUE(torch::equal(model.forward(x), expected)) << model.name();
    EXPECT_EQ(calls, count) << model.name();
    run_blocks_by(model, {});
    model.forward(x);
    EXPECT_EQ(calls, count);
  }
  EXPECT_EQ(run_blocks_by(models.at("mlp").make(2, 1), {}), 0);
}

TEST(ModelRegistry, SequenceModelsAnswerTheirExamples) {
  for (const char* name : {"unet", "bert-20m", "encoder_decoder"}) {
    const ModelEntry& entry = registry().at(name);
    const Model model = entry.make(5, entry.input_shape[0]);
    EXPECT_EQ(model.name(), name);
    const at::Tensor loss = example_loss(entry, model.forward(example_input(entry, 2, 16)));
    EXPECT_TRUE(std::isfinite(loss.item<double>())) << name;
    if (entry.name == "bert-20m") {
      EXPECT_NEAR(static_cast<double>(parameter_count(model)), 20e6, 1e6);
    }
  }
  const ModelEntry& gpt2 = registry().at("gpt2");
  EXPECT_EQ(example_input(gpt2, 3).sizes(), (std::vector<int64_t>{3, 128}));
  const Model small = gpt(small_gpt());
  EXPECT_NEAR(example_loss(gpt2, small.forward(ids)).item<double>(), std::log(30.0), 0.2);
  EXPECT_THAT(message_of([&] { example_input(gpt2, 0); }), HasSubstr("a batch of at least 1"));
}

}  // namespace bellows::models
