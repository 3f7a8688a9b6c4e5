// Trained models are evaluated as their training run evaluated them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>

#include <filesystem>

#include "bellows/data/order/labels.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/train/inference/model_evaluation.h"
#include "tests/support/captured_log.h"
#include "tests/train/inference/support.h"

namespace bellows::train {

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Evaluation trained_evaluation(const Recipe& recipe) {
  return *Trainer(recipe).fit().evaluation;
}

void expect_equal(const Evaluation& a, const Evaluation& b) {
  EXPECT_EQ(a.samples, b.samples);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.accuracy, b.accuracy);
  EXPECT_EQ(a.metrics, b.metrics);
}

/// Settings that change the weights, their type or the forward pass.
class EvaluateRun : public testing::TestWithParam<std::vector<std::string>> {};

std::string run_name(const testing::TestParamInfo<std::vector<std::string>>& info) {
  std::string name;
  for (const std::string& item : info.param) {
    for (const char c : item) {
      if (std::isalnum(static_cast<unsigned char>(c))) name += c;
    }
  }
  return name.empty() ? "Plain" : name;
}

}  // namespace

TEST_P(EvaluateRun, EqualsTheLastEvaluationOfTraining) {
  const TemporaryFolder folder;
  Recipe recipe = small_run(folder);
  recipe.metrics = "f1";
  for (const std::string& item : GetParam()) recipe.set(item);
  if (!recipe.eval_split.empty()) recipe.eval_data.clear();
  const FitResult during = Trainer(recipe).fit();
  const TrainedModel trained = load_run(recipe.run_folder);
  const ModelEvaluation after = evaluate(trained);
  expect_equal(after.evaluation, *during.evaluation);
  EXPECT_GT(after.evaluation.accuracy, 0.12) << "not the model before training";
  EXPECT_EQ(trained.averaged, recipe.ema_decay > 0);
  EXPECT_EQ(trained.step, during.steps);
}

INSTANTIATE_TEST_SUITE_P(All, EvaluateRun,
                         testing::Values(std::vector<std::string>{}, std::vector<std::string>{"ema_decay=0.9"},
                                         std::vector<std::string>{"precision=bf16"},
                                         std::vector<std::string>{"precision=bf16", "amp_level=O2"},
                                         std::vector<std::string>{"model=digits_resnet", "channels_last=true",
                                                                  "epochs=1"},
                                         std::vector<std::string>{"eval_split=0.2"},
                                         std::vector<std::string>{"model=digits_resnet", "image_size=6", "epochs=1"},
                                         std::vector<std::string>{"compile=forward"}),
                         run_name);

TEST(Evaluate, ReportsSizeAndLatency) {
  const TemporaryFolder folder;
  const Recipe recipe = small_run(folder);
  Trainer(recipe).fit();
  const TrainedModel trained = load_run(recipe.run_folder);
  const ModelEvaluation result = evaluate(trained, {.batch_size = 100});
  EXPECT_EQ(result.batches, 4);
  EXPECT_EQ(result.batch_size, 100);
  EXPECT_GT(result.latency_median_s, 0);
  EXPECT_GE(result.latency_p90_s, result.latency_median_s);
  EXPECT_GT(result.samples_per_second, 0);
  int64_t numbers = 0;
  for (const at::Tensor& parameter : trained.model.parameters()) numbers += parameter.numel();
  EXPECT_EQ(result.weight_bytes, 4 * numbers);
  EXPECT_EQ(result.data, digits_folder() + "/test-000.tar");
  EXPECT_EQ(evaluate(trained, {.batch_size = 1000}).batches, 1);
}

TEST(Evaluate, CompiledAndInBf16) {
  const TemporaryFolder folder;
  Recipe recipe = small_run(folder);
  Trainer(recipe).fit();
  const ModelEvaluation plain = evaluate(load_run(recipe.run_folder));
  const ModelEvaluation compiled = evaluate(load_run(recipe.run_folder), {.compile = true});
  EXPECT_NEAR(compiled.evaluation.loss, plain.evaluation.loss, 1e-4);
  EXPECT_NEAR(compiled.evaluation.accuracy, plain.evaluation.accuracy, 1.5 / 359);
  Recipe low = recipe_of_run(recipe.run_folder);
  low.precision = "bf16";
  low.amp_level = "O2";
  const ModelEvaluation bf16 = evaluate(load_run(recipe.run_folder, low));
  EXPECT_EQ(2 * bf16.weight_bytes, plain.weight_bytes) << "the model has no norm layers";
  EXPECT_NEAR(bf16.evaluation.loss, plain.evaluation.loss, 2e-2);
  EXPECT_NE(bf16.evaluation.loss, plain.evaluation.loss);
}

TEST(Evaluate, OtherDataAndSplits) {
  const TemporaryFolder folder;
  Recipe recipe = small_run(folder);
  recipe.data = digits_folder();
  recipe.eval_data.clear();
  recipe.epochs = 1;
  const Evaluation during = trained_evaluation(recipe);
  const TrainedModel trained = load_run(recipe.run_folder);
  const ModelEvaluation train = evaluate(trained, {.split = "train"});
  EXPECT_EQ(train.evaluation.samples, 1438);
  EXPECT_EQ(train.data, digits_folder() + ", split train");
  expect_equal(evaluate(trained, {.data = digits_folder() + "/test-000.tar"}).evaluation, during);
  expect_equal(evaluate(trained, {.data = digits_folder()}).evaluation, during);
  EXPECT_THAT(error_of([&] { evaluate(trained, {.split = "tset"}); }), HasSubstr("Did you mean \"test\"?"));
  EXPECT_THAT(error_of([&] { evaluate(trained, {.data = "/nowhere"}); }), HasSubstr("/nowhere"));
}

TEST(Evaluate, AnotherModelTakesThePlaceOfTheTrainedOne) {
  const TemporaryFolder folder;
  const Recipe recipe = small_run(folder);
  Trainer(recipe).fit();
  TrainedModel trained = load_run(recipe.run_folder);
  trained.model = Model::of(torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(64, 10)), "untrained");
  EXPECT_LT(evaluate(trained).evaluation.accuracy, 0.5);
}

TEST(Evaluate, RefusesOtherClasses) {
  const TemporaryFolder folder;
  Recipe recipe = small_run(folder);
  recipe.data = digits_folder();
  recipe.eval_data.clear();
  recipe.epochs = 1;
  Trainer(recipe).fit();
  const TrainedModel trained = load_run(recipe.run_folder);
  std::filesystem::copy(digits_folder(), folder / "other");
  const std::string json = read_text_file(folder / "other/dataset.json");
  const size_t nine = json.find("\"9\"");
  std::string renamed = json, fewer = json;
  renamed.replace(nine, 3, "\"ix\"");
  fewer.replace(json.rfind(',', nine), nine + 3 - json.rfind(',', nine), "");
  write_text_file(folder / "other/dataset.json", renamed);
  EXPECT_THAT(error_of([&] { evaluate(trained, {.data = folder / "other"}); }),
              AllOf(HasSubstr("class 9 is \"9\" in the training data"), HasSubstr("but \"ix\" in")));
  write_text_file(folder / "other/dataset.json", fewer);
  EXPECT_THAT(error_of([&] { evaluate(trained, {.data = folder / "other"}); }),
              HasSubstr("the model predicts 10 classes, but"));
}

TEST(Evaluate, RefusesSamplesWithoutLabels) {
  const TemporaryFolder folder;
  const Recipe recipe = small_run(folder);
  Trainer(recipe).fit();
  write_test_images(folder / "images", 20);
  EXPECT_THAT(error_of([&] { evaluate(load_run(recipe.run_folder), {.data = folder / "images"}); }),
              HasSubstr("label"));
}

TEST(TrainedModel, SkipsADamagedCheckpoint) {
  const TemporaryFolder folder;
  const Recipe recipe = small_run(folder);
  const FitResult result = Trainer(recipe).fit();
  std::string bytes = read_bytes(result.checkpoint);
  bytes.resize(bytes.size() / 2);
  write_bytes(result.checkpoint, bytes);
  const CapturedLog log;
  const TrainedModel trained = load_run(recipe.run_folder);
  EXPECT_EQ(trained.step, 12);
  EXPECT_THAT(log.text(), HasSubstr("trying the previous one"));
  EXPECT_EQ(evaluate(trained).evaluation.accuracy, result.history[0].eval_accuracy);
}

TEST(TrainedModel, LoadsEachKindOfFile) {
  const TemporaryFolder folder;
  Recipe recipe = small_run(folder);
  recipe.ema_decay = 0.9;
  const FitResult result = Trainer(recipe).fit();
  const TrainedModel run = load_run(recipe.run_folder);
  const std::vector<at::Tensor> weights = copies_of(run.model);
  expect_same_bits(copies_of(load_trained(recipe, result.checkpoint).model), weights);
  io::save_safetensors(folder / "w.safetensors", run.model.state_dict());
  NamedTensors copies;
  for (const auto& [name, tensor] : run.model.state_dict()) copies.emplace_back(name, tensor.detach().clone());
  io::torch_save(folder / "w.pt", copies);
  for (const char* file : {"w.safetensors", "w.pt"}) {
    const TrainedModel trained = load_trained(recipe, folder / file);
    expect_same_bits(copies_of(trained.model), weights);
    EXPECT_EQ(trained.step, -1);
    Recipe named = recipe;
    named.weights = folder / file;
    expect_same_bits(copies_of(load_trained(named, "").model), weights);
  }
}

TEST(TrainedModel, TorchScriptFilesContainTheirWeights) {
  const TemporaryFolder folder;
  torch::jit::Module module("Net");
  module.register_parameter("w", torch::zeros({192, 10}).requires_grad_(), /*is_buffer=*/false);
  module.register_parameter("b", torch::arange(10).to(at::kFloat).requires_grad_(), /*is_buffer=*/false);
  module.define("def forward(self, x):\n  return torch.matmul(x.flatten(1), self.w) + self.b\n");
  module.save(folder / "net.pt");
  Recipe recipe = digits_recipe();
  recipe.model = folder / "net.pt";
  const ModelEvaluation result = evaluate(load_trained(recipe, ""));
  int64_t nines = 0;
  const data::SourcePtr test = data::open(recipe.eval_data).source();
  for (const int64_t label : data::read_labels(*test)) nines += label == 9;
  EXPECT_EQ(result.evaluation.accuracy, static_cast<double>(nines) / static_cast<double>(test->size()));
  EXPECT_EQ(result.weight_bytes, 4 * 1930) << "RGB images of 8 x 8 pixels, and 10 biases";
}

TEST(TrainedModel, NamesWhatIsMissing) {
  const TemporaryFolder folder;
  Recipe recipe = small_run(folder);
  EXPECT_THAT(error_of([&] { load_run(folder / "none"); }), HasSubstr("`run`: there is no folder " + folder / "none"));
  EXPECT_THAT(error_of([&] { load_run(folder.path()); }), HasSubstr("contains no recipe.yaml"));
  write_text_file(folder / "recipe.yaml", recipe.to_yaml());
  EXPECT_THAT(error_of([&] { load_run(folder.path()); }), HasSubstr("contains no checkpoint"));
  EXPECT_THAT(error_of([&] { load_trained(recipe, ""); }), HasSubstr("would have random weights. Set `weights`"));
  Recipe config = recipe;
  config.model = folder / "config.json";
  EXPECT_THAT(error_of([&] { load_trained(config, ""); }), HasSubstr("would have random weights. Set `weights`"));
  EXPECT_THAT(error_of([&] { load_trained(recipe, folder / "no.pt"); }), HasSubstr("`weights`: " + folder / "no.pt"));
  EXPECT_THAT(error_of([&] { load_trained(recipe, folder.path()); }), HasSubstr("set `run`"));
  io::save_safetensors(folder / "w.safetensors", make_model(resolve(recipe)).state_dict());
  recipe.num_classes = 12;
  EXPECT_THAT(error_of([&] { load_trained(recipe, folder / "w.safetensors"); }),
              AllOf(HasSubstr("model [12"), HasSubstr("file [10")));
}

}  // namespace bellows::train
