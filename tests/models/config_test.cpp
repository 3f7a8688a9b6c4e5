#include "bellows/models/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/system/file.h"

namespace bellows::models {

namespace {

struct SenselessConfig {
  const char* json;
  const char* words;  ///< of the message
};

/// What reading it says; "" – nothing.
template <class Read>
std::string said_of_config(const std::string& path, const std::string& text, Read read) {
  write_text_file(path, text);
  try {
    read(path);
  } catch (const c10::ValueError& error) {
    return user_message(error);
  }
  return "";
}

template <class Read>
void expect_refused(const std::vector<SenselessConfig>& configs, Read read) {
  const std::string path = testing::TempDir() + c10::str("senseless_", getpid(), ".json");
  for (const auto& [json, words] : configs) {
    const std::string said = said_of_config(path, json, read);
    EXPECT_THAT(said, testing::StartsWith("config " + path + ": expected ")) << json;
    EXPECT_THAT(said, testing::HasSubstr(words)) << json;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 0) << said;
  }
  std::filesystem::remove(path);
}

}  // namespace

TEST(ModelConfig, SenselessValuesAreRefusedByNameAndValue) {
  expect_refused(
      {{R"({"num_attention_heads": 0})", "heads that divide the width of 768, got 0"},
       {R"({"hidden_size": 770})", "heads that divide the width of 770, got 12"},
       {R"({"num_attention_heads": -12})", "got -12"},
       {R"({"vocab_size": -5})", "vocab_size from 1 to 16777216, got -5"},
       {R"({"vocab_size": 9223372036854775807})", "vocab_size from 1 to 16777216, got 9223372036854775807"},
       {R"({"vocab_size": 1e30})", "vocab_size to be a whole number, found \"1e+30\""},
       {R"({"num_hidden_layers": 0})", "num_hidden_layers from 1 to 4096, got 0"},
       {R"({"num_hidden_layers": 1000000})", "num_hidden_layers from 1 to 4096"},
       {R"({"num_hidden_layers": "12"})", "num_hidden_layers to be a whole number, found \"12\""},
       {R"({"num_hidden_layers": 2.5})", "num_hidden_layers to be a whole number, found \"2.5\""},
       {R"({"intermediate_size": [4]})", "intermediate_size to be a whole number"},
       {R"({"max_position_embeddings": 0})", "max_position_embeddings from 1"},
       {R"({"type_vocab_size": 0})", "type_vocab_size from 1"},
       {R"({"id2label": {}})", "num_labels from 1"},
       {R"({"hidden_dropout_prob": 2})", "dropout in [0, 1), got 2"},
       {R"({"classifier_dropout": -0.1})", "dropout in [0, 1), got -0.1"},
       {R"({"attention_probs_dropout_prob": "0.1"})", "attention_probs_dropout_prob to be a number, found \"0.1\""},
       {R"({"hidden_act": "swish"})", "got \"swish\""},
       {R"({"layer_norm_eps": 0})", "epsilon above 0, got 0"},
       {R"({"initializer_range": -0.02})", "initializer_range, a standard deviation, of at least 0, got -0.02"},
       {R"({"vocab_size": 10, "pad_token_id": 10})", "pad_token_id from 0 to 9, got 10"}},
      [](const std::string& path) { read_bert_config(path); });
  expect_refused({{R"({"n_heads": 5})", "heads that divide the width of 768, got 5"},
                  {R"({"n_layers": -1})", "n_layers from 1 to 4096, got -1"},
                  {R"({"seq_classif_dropout": 1})", "dropout in [0, 1), got 1"},
                  {R"({"activation": ""})", "got \"\""}},
                 [](const std::string& path) { read_distilbert_config(path); });
  expect_refused({{R"({"n_head": 0})", "heads that divide the width of 768, got 0"},
                  {R"({"n_inner": 0})", "n_inner from 1"},
                  {R"({"n_layer": 5000})", "n_layer from 1 to 4096, got 5000"},
                  {R"({"n_positions": -1})", "n_positions from 1"},
                  {R"({"embd_pdrop": 1.5})", "dropout in [0, 1), got 1.5"},
                  {R"({"layer_norm_epsilon": -1e-5})", "epsilon above 0"}},
                 [](const std::string& path) { read_gpt_config(path); });
}

}  // namespace bellows::models
