// Students of text models: layers of the teacher, and DistilBERT's loss in a loop of the user's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "bellows/core/grad_mode.h"
#include "bellows/models/bert.h"
#include "bellows/models/distilbert.h"
#include "bellows/nn/distillation.h"
#include "bellows/optim/optimizers.h"
#include "bellows/system/file.h"
#include "bellows/train/distillation.h"
#include "bellows/train/job.h"
#include "tests/models/small_models.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

constexpr const char* taught_words[] = {"red", "blue", "stone", "river", "cloud", "seven", "paper", "green"};

/// 120 texts of two classes, a vocabulary, a BERT with four layers and its random weights, and a DistilBERT with two.
class TextDistillation : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ / "set");
    std::string train, test, vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n";
    for (int64_t i = 0; i < 120; ++i) train += line(i);
    for (int64_t i = 120; i < 150; ++i) test += line(i);
    for (const char* word : taught_words) vocabulary += c10::str(word, "\n");
    write_text_file(folder_ / "set/train.jsonl", train);
    write_text_file(folder_ / "set/test.jsonl", test);
    write_text_file(folder_ / "vocab.txt", vocabulary);
    write_text_file(folder_ / "teacher.json",
                    R"({"model_type": "bert", "vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 4,
                        "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 40})");
    write_text_file(folder_ / "student.json",
                    R"({"model_type": "distilbert", "vocab_size": 12, "dim": 16, "n_layers": 2, "n_heads": 2,
                        "hidden_dim": 32, "max_position_embeddings": 40, "dropout": 0.0, "attention_dropout": 0.0,
                        "seq_classif_dropout": 0.0})");
    at::manual_seed(7);
    const models::ModelEntry entry = models::model_entry(folder_ / "teacher.json");
    io::save_safetensors(folder_ / "teacher.safetensors", entry.make(2, 12).state_dict());
  }

  static std::string line(int64_t i) {
    std::string text;
    for (int64_t w = 0; w < 3 + i * 11 % 20; ++w) text += c10::str(w ? " " : "", taught_words[(i * 5 + w * w) % 8]);
    return c10::str("{\"text\": \"", text, "\", \"label\": ", i % 2, "}\n");
  }

  Recipe recipe(const std::vector<std::string>& settings = {}) const {
    Recipe result;
    result.model = folder_ / "student.json";
    result.teacher = folder_ / "teacher.json";
    result.teacher_weights = folder_ / "teacher.safetensors";
    result.data = folder_ / "set";
    result.tokenizer = folder_ / "vocab.txt";
    result.optimizer = "adamw";
    result.lr = 1e-3;
    result.batch_size = 24;
    result.num_workers = 0;
    for (const std::string& setting : settings) result.set(setting);
    return result;
  }
  std::string error_with(const std::vector<std::string>& settings) const {
    return error_of([&] { make_job(recipe(settings)); });
  }

  TemporaryFolder folder_;
};

at::Tensor tensor_of(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

struct MaskedTokens {
  at::Tensor tokens, masked, labels;
};

/// Random tokens. 15 % of them are replaced with a mask token, and only these have labels.
MaskedTokens masked_tokens() {
  const at::Tensor tokens = torch::randint(4, 30, {64, 10}, at::kLong);
  const at::Tensor chosen = torch::rand({64, 10}).lt(0.15);
  return {tokens, tokens.masked_fill(chosen, 3), tokens.masked_fill(chosen.logical_not(), -100)};
}

}  // namespace

TEST_F(TextDistillation, TheStudentStartsFromTheTeachersLayers) {
  const NamedTensors teacher = io::load_safetensors(folder_ / "teacher.safetensors");
  const auto second_layer = [&](const std::string& init) {
    return tensor_of(make_job(recipe({"distill_init=" + init})).model.state_dict(),
                     "distilbert.transformer.layer.1.ffn.lin1.weight");
  };
  const std::string rest = ".intermediate.dense.weight";
  EXPECT_TRUE(torch::equal(second_layer("every_second"), tensor_of(teacher, "bert.encoder.layer.2" + rest)));
  EXPECT_TRUE(torch::equal(second_layer("0, 3"), tensor_of(teacher, "bert.encoder.layer.3" + rest)));
  EXPECT_FALSE(torch::equal(second_layer("none"), tensor_of(teacher, "bert.encoder.layer.2" + rest)));
  EXPECT_THAT(error_with({"distill_init=every_third"}), HasSubstr("expected none, every_second or layer numbers"));
  EXPECT_THAT(error_with({"distill_init=0,9"}),
              HasSubstr("distill_init = 0,9: copy_layers: the teacher has layers 0 to 3"));
  EXPECT_THAT(error_with({"distill_init=1"}), HasSubstr("each of the student's 2 layers, got 1"));
}

TEST_F(TextDistillation, CachesAndCompiledTeachersWorkWithPaddedTexts) {
  const auto losses = [&](const std::vector<std::string>& settings) {
    TrainLoop loop(make_job(recipe(settings)));
    loop.run_steps(12);
    return loop.take_losses();
  };
  const std::string cache = "teacher_cache=" + folder_.path() + "/outputs";
  const struct {
    std::vector<std::string> plain, changed;
  } cases[] = {{{}, {cache}},
               {{"length_buckets=true"}, {cache, "length_buckets=true"}},
               {{}, {"teacher_compile=true"}},
               {{}, {"teacher_dtype=bf16"}}};
  for (const auto& [plain, changed] : cases) {
    SCOPED_TRACE(changed.back());
    const std::vector<double> expected = losses(plain), found = losses(changed);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-3 * expected[i]) << "step " << i;
  }
}

// The loop that docs/tasks.md describes: logits and hidden states of one forward pass, and a projection, because the
// student is narrower than its teacher.
TEST(TripleLoss, ASmallDistilBertLearnsFromABertInALoopOfYourOwn) {
  at::manual_seed(8);
  models::BertOptions teacher_options = models::small_bert(models::TextHead::masked_lm_hidden);
  teacher_options.hidden_size = 16;
  const Model teacher = models::bert(teacher_options);
  teacher.eval();
  const Model student = models::distilbert(models::small_distilbert(models::TextHead::masked_lm_hidden));
  torch::nn::Linear projection(8, 16);  // trained together with the student
  std::vector<at::Tensor> parameters = student.parameters();
  for (const at::Tensor& parameter : projection->parameters()) parameters.push_back(parameter);
  optim::AdamW optimizer(parameters, optim::AdamWOptions{.lr = 1e-2});

  const NamedTensors own = student.state_dict(), theirs = teacher.state_dict();
  const at::Tensor weight = tensor_of(own, "distilbert.embeddings.word_embeddings.weight"),
                   bias = tensor_of(own, "vocab_projector.bias"),
                   teacher_weight = tensor_of(theirs, "bert.embeddings.word_embeddings.weight"),
                   teacher_bias = tensor_of(theirs, "cls.predictions.bias");
  const auto loss_of = [&](const at::Tensor& x, const at::Tensor& mask, const at::Tensor& targets) {
    nn::TripleLossInputs inputs{.labels = targets};
    {
      const no_grad guard;
      inputs.teacher_hidden = teacher.forward(x);
      inputs.teacher_logits = at::linear(inputs.teacher_hidden, teacher_weight, teacher_bias);
    }
    const at::Tensor hidden = student.forward(x);
    inputs.student_logits = at::linear(hidden, weight, bias);
    inputs.student_hidden = projection->forward(hidden);
    return nn::triple_loss(inputs, {.temperature = 2, .mask = mask});
  };
  const auto [tokens, masked, labels] = masked_tokens();
  double first = 0, last = 0;
  for (int64_t step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(masked, tokens.ne(0), labels);
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, 0.8 * first);
  EXPECT_TRUE(projection->weight.grad().defined());
  for (const at::Tensor& parameter : teacher.parameters()) EXPECT_FALSE(parameter.grad().defined());
}

// Feature maps of a convolutional teacher, in the trainer: the loss function is the user's own.
TEST(AttentionTransfer, ATrainerWithYourOwnLossLearnsATeachersFeatureMaps) {
  at::manual_seed(9);
  const auto maps_of = [](int64_t channels) {
    return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, channels, 3).padding(1)),
                                 torch::nn::ReLU());
  };
  torch::nn::Sequential teacher = maps_of(12);
  const Model student = Model::of(maps_of(4), "student");
  const at::Tensor images = torch::rand({64, 1, 8, 8});
  const data::Dataset train =
      data::Dataset(data::from_tensors({{"x", images}, {"label", at::zeros({64}, at::kLong)}})).batch(16).shuffle(1);
  const LossFn loss = [&](const data::Batch& batch) {
    at::Tensor taught;
    {
      const no_grad guard;
      taught = teacher->forward(batch["x"]);
    }
    return nn::attention_transfer_loss(student.forward(batch["x"]), taught);
  };
  torch::optim::Adam optimizer(student.parameters(), torch::optim::AdamOptions(1e-2));
  Recipe recipe;
  recipe.epochs = 15;
  recipe.num_workers = 0;
  const FitResult result = Trainer(recipe).fit(student, optimizer, loss, train);
  EXPECT_LT(result.history.back().train_loss, 0.5 * result.history.front().train_loss);
}

}  // namespace bellows::train
