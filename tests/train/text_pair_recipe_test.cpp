// Pairs of texts in recipes: what the model reads, training, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/system/file.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/loss.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

/// 160 pairs of words, whose class depends on the first word only, and a small BERT.
class TextPairRecipe : public testing::Test {
 protected:
  void SetUp() override {
    constexpr const char* words[] = {"red", "blue", "stone", "river"};
    std::string lines;
    for (int64_t i = 0; i < 160; ++i) {
      const char* first = words[i % 4];
      const char* second = words[i / 4 % 4];
      lines +=
          c10::str(R"({"premise": ")", first, R"(", "claim": ")", second, R"(", "label": )", i % 4 < 2 ? 1 : 0, "}\n");
    }
    write_text_file(path("pairs.jsonl"), lines);
    write_text_file(path("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\nred\nblue\nstone\nriver\n");
    write_text_file(path("config.json"),
                    R"({"model_type": "bert", "vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 1,
                        "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 16,
                        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})");
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  Recipe recipe() const {
    Recipe result;
    result.model = path("config.json");
    result.data = path("pairs.jsonl");
    result.tokenizer = path("vocab.txt");
    result.text_field = "premise, claim";
    result.batch_size = 16;
    result.num_workers = 0;
    result.eval_split = "none";
    return result;
  }
  static std::string error_of_recipe(const Recipe& recipe) {
    try {
      make_job(recipe);
    } catch (const c10::Error& error) {
      return user_message(error);
    }
    return "no error";
  }
  static std::string error_of_batch(const Recipe& recipe) {
    try {
      data::Loader loader = open_train_data(recipe).loader();
      loader.start(0);
      loader.next();
    } catch (const c10::Error& error) {
      return user_message(error);
    }
    return "no error";
  }
  TemporaryFolder folder_;
};

}  // namespace

TEST_F(TextPairRecipe, TheModelReadsTokenTypes) {
  const Job job = make_job(recipe());
  data::Loader loader = job.train.loader();
  loader.start(0);
  const data::Batch batch = *loader.next();
  EXPECT_EQ(batch["tokens"].sizes(), (std::vector<int64_t>{16, 5}));
  EXPECT_TRUE(torch::equal(batch["token_type_ids"][0], torch::tensor({0, 0, 0, 1, 1})));
  job.model.eval();
  const at::Tensor with_types = job.model.forward_all({batch["tokens"], {}, batch["token_type_ids"]}).front();
  EXPECT_TRUE(torch::equal(predict(job.model, batch), with_types));
  EXPECT_FALSE(torch::allclose(job.model.forward(batch["tokens"]), with_types));
}

TEST_F(TextPairRecipe, TellsTheTextsApart) {
  Recipe both = recipe();
  both.optimizer = "adamw";
  both.lr = 1e-2;
  TrainLoop loop(make_job(both));
  loop.run_steps(120);
  const std::vector<double> losses = loop.take_losses();
  double last = 0;
  for (size_t i = losses.size() - 10; i < losses.size(); ++i) last += losses[i] / 10;
  EXPECT_LT(last, 0.2) << "of a model that confuses the texts: above 0.4";
}

TEST_F(TextPairRecipe, OneTextAloneHasNoTypes) {
  Recipe one = recipe();
  one.text_field = "claim";
  data::Loader loader = open_train_data(one).loader();
  loader.start(0);
  EXPECT_FALSE((*loader.next()).contains("token_type_ids"));
}

TEST_F(TextPairRecipe, OtherModelsAndFieldsAreRefused) {
  Recipe wrong = recipe();
  wrong.text_field = "premise, claim, label";
  EXPECT_THAT(error_of_recipe(wrong), HasSubstr("text_field: expected one field, or two for pairs of texts"));
  wrong = recipe();
  wrong.tokenizer = "bytes";
  EXPECT_THAT(error_of_recipe(wrong), HasSubstr("cannot join two texts"));
  wrong = recipe();
  wrong.text_field = "premise, absent";
  EXPECT_THAT(error_of_batch(wrong), HasSubstr("has no text \"absent\""));
  wrong = recipe();
  write_text_file(path("gpt.json"),
                  R"({"model_type": "gpt2", "vocab_size": 259, "n_embd": 8, "n_layer": 1, "n_head": 2})");
  wrong.model = path("gpt.json");
  wrong.tokenizer = "bytes";
  EXPECT_THAT(error_of_recipe(wrong), HasSubstr("predicts the next token reads one text per sample"));
}

}  // namespace bellows::train
