// A model of the next token over raw texts and a tokenizer.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "bellows/system/file.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/job.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

class BpeTextRun : public testing::Test {
 protected:
  void SetUp() override {
    const std::string golden = std::string(BELLOWS_SOURCE_DIR) + "/tests/goldens/data/bpe.json";
    file_ = nlohmann::json::parse(nlohmann::json::parse(read_text_file(golden))["cases"][0]["file"].get<std::string>());
    write_text_file(folder_ / "tokenizer.json", file_.dump());
    std::string lines;
    for (int i = 0; i < 60; ++i)
      lines += c10::str("{\"text\": \"", i % 2 ? "naïve Straße 中文" : "hello unwanted runs", "\"}\n");
    write_text_file(folder_ / "texts.jsonl", lines);
    write_text_file(folder_ / "gpt.json", R"({"model_type": "gpt2", "vocab_size": 420, "n_positions": 64, "n_embd": 32,
                                              "n_layer": 1, "n_head": 2})");
    recipe_.model = folder_ / "gpt.json";
    recipe_.data = recipe_.eval_data = folder_ / "texts.jsonl";
    recipe_.tokenizer = folder_ / "tokenizer.json";
    recipe_.max_length = 64;
    recipe_.optimizer = "adamw";
    recipe_.lr = 1e-2;
    recipe_.batch_size = 4;
    recipe_.epochs = 8;
    recipe_.num_workers = 0;
  }

  TemporaryFolder folder_;
  nlohmann::json file_;
  Recipe recipe_;
};

TEST_F(BpeTextRun, LearnsTheNextToken) {
  const CapturedLog log;
  const FitResult result = Trainer(recipe_).fit();
  EXPECT_LT(result.evaluation->loss, 0.5 * std::log(420));
  EXPECT_GT(result.evaluation->accuracy, 0.5);
}

// Token 0 of GPT-2's own file is "!": models that pad with it would not see it.
TEST_F(BpeTextRun, ModelsThatPadNeedATokenForIt) {
  recipe_.model = "bert-20m";
  recipe_.num_classes = 2;
  file_["added_tokens"] = nlohmann::json::array();
  write_text_file(recipe_.tokenizer, file_.dump());
  EXPECT_THAT(error_of([&] { open_train_data(recipe_); }),
              HasSubstr("uses token 0 for padding, but token 0 is a piece of text in byte-level BPE, 420 tokens"));
}

}  // namespace

}  // namespace bellows::train
