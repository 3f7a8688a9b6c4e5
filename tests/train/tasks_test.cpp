// Tasks beyond a class for each image: several inputs, numbers, several labels, masks. Each trains, resumes with the same
// bits, is planned and compiled, as a registered model and as TorchScript.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>

#include "bellows/core/seed.h"
#include "bellows/io/images/image.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/models/register_model.h"
#include "bellows/models/resnet.h"
#include "bellows/models/vision/googlenet.h"
#include "bellows/plan/plan.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/distillation.h"
#include "bellows/train/job.h"
#include "bellows/train/trainer.h"
#include "tests/support/captured_log.h"
#include "tests/train/support.h"

namespace bellows::train {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t samples = 60;

/// Two images in, the classes "same" and "different" out.
struct SiameseImpl : torch::nn::Module {
  explicit SiameseImpl(int64_t num_classes)
      : shared(register_module("shared", torch::nn::Linear(64, 16))),
        head(register_module("head", torch::nn::Linear(16, num_classes))) {}
  at::Tensor forward(const at::Tensor& left, const at::Tensor& right) {
    const auto embed = [&](const at::Tensor& x) { return torch::relu(shared(x.flatten(1))); };
    return head((embed(left) - embed(right)).abs());
  }
  torch::nn::Linear shared, head;
};
TORCH_MODULE(Siamese);
BELLOWS_MODEL("test_siamese", Siamese, .inputs = {{"left", {1, 8, 8}}, {"right", {1, 8, 8}}});

/// A class for each pixel.
struct PixelsImpl : torch::nn::Module {
  PixelsImpl(int64_t num_classes, int64_t in_channels)
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, 8, 3).padding(1)))),
        head(register_module("head", torch::nn::Conv2d(8, num_classes, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return head(torch::relu(conv(x))); }
  torch::nn::Conv2d conv, head;
};
TORCH_MODULE(Pixels);
BELLOWS_MODEL("test_pixels", Pixels, .output = models::OutputKind::pixel);

/// Reads images of any size, and does not declare their shape.
struct ImagesImpl : torch::nn::Module {
  explicit ImagesImpl(int64_t outputs) : conv(register_module("conv", torch::nn::Conv2d(1, outputs, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return conv(x).mean({2, 3}); }
  torch::nn::Conv2d conv;
};
TORCH_MODULE(Images);
BELLOWS_MODEL("test_images", Images);

void write_pairs(const std::string& path) {
  const at::Tensor left = torch::rand({samples, 1, 8, 8});
  const at::Tensor label = torch::arange(samples) % 2;
  const at::Tensor right = torch::where(label.view({-1, 1, 1, 1}) == 1, left, torch::rand({samples, 1, 8, 8}));
  io::save_safetensors(path, {{"left", left}, {"right", right}, {"label", label}});
}

void write_table(const std::string& path) {
  std::ofstream file(path);
  file << "area,rooms,price\n";
  for (int64_t i = 0; i < samples; ++i) {
    const double area = static_cast<double>(i) / samples, rooms = static_cast<double>(i % 5) / 5;
    file << area << "," << rooms << "," << 3 * area - rooms + 0.5 << "\n";
  }
}

void write_labels(const std::string& path) {
  const at::Tensor image = torch::randint(0, 256, {samples, 8, 8, 1}, at::kByte);
  const at::Tensor bright = image.to(at::kFloat).mean({1, 2, 3});
  const at::Tensor corner = image.select(1, 0).select(1, 0).squeeze(1);
  const at::Tensor labels = torch::stack({bright.gt(127), corner.gt(127), corner.lt(50)}, 1).to(at::kFloat);
  io::save_safetensors(path, {{"image", image}, {"tags", labels}});
}

void write_masks(const std::string& path) {
  const at::Tensor image = torch::randint(0, 256, {samples, 8, 8, 1}, at::kByte);
  at::Tensor mask = image.squeeze(3).gt(127).to(at::kByte);
  mask.slice(1, 0, 1).fill_(255);  // ignored
  io::save_safetensors(path, {{"image", image}, {"mask", mask}});
}

struct TaskCase {
  const char* name;
  void (*write)(const std::string& path);
  const char* ending;
  const char* model;
  std::vector<std::string> keys;
  const char* forward;  ///< of the same as TorchScript
  std::vector<std::pair<const char*, std::vector<int64_t>>> weights;
};

void PrintTo(const TaskCase& one, std::ostream* out) {
  *out << one.name;
}

const std::vector<TaskCase>& cases() {
  static const std::vector<TaskCase> all = {
      {"siamese",
       write_pairs,
       "safetensors",
       "test_siamese",
       {},
       "def forward(self, left, right):\n"
       "  a = torch.relu(torch.matmul(left.flatten(1), self.shared))\n"
       "  b = torch.relu(torch.matmul(right.flatten(1), self.shared))\n"
       "  return torch.matmul(torch.abs(a - b), self.head)\n",
       {{"shared", {64, 16}}, {"head", {16, 2}}}},
      {"regression",
       write_table,
       "csv",
       "tabular_mlp",
       {"target=price", "loss=mse", "features=all"},
       "def forward(self, x):\n  return torch.matmul(torch.relu(torch.matmul(x, self.a)), self.b)\n",
       {{"a", {2, 16}}, {"b", {16, 1}}}},
      {"multi_label",
       write_labels,
       "safetensors",
       "digits_resnet",
       {"target=tags", "loss=bce", "optimizer=adamw"},
       "def forward(self, x):\n  return torch.matmul(x.flatten(1), self.w)\n",
       {{"w", {64, 3}}}},
      {"segmentation",
       write_masks,
       "safetensors",
       "test_pixels",
       {"target=mask", "num_classes=2", "optimizer=adamw", "lr=0.01"},
       "def forward(self, x):\n"
       "  return torch.conv2d(torch.relu(torch.conv2d(x, self.a, None, [1, 1], [1, 1])), self.b)\n",
       {{"a", {8, 1, 3, 3}}, {"b", {2, 8, 1, 1}}}},
  };
  return all;
}

class Tasks : public testing::TestWithParam<TaskCase> {
 protected:
  Tasks() {
    seed_everything(3);
    GetParam().write(data());
  }
  std::string data() const { return folder_ / (std::string("data.") + GetParam().ending); }

  Recipe recipe(const std::string& model) const {
    Recipe recipe;
    recipe.model = model;
    recipe.data = data();
    recipe.eval_split = "0.2";
    recipe.epochs = 3;
    recipe.batch_size = 12;
    recipe.num_workers = 0;
    for (const std::string& key : GetParam().keys) recipe.set(key);
    return recipe;
  }
  /// The same model as a TorchScript file.
  std::string script() const {
    torch::jit::Module module("Net");
    for (const auto& [name, sizes] : GetParam().weights)
      module.register_parameter(name, (0.3 * torch::randn(sizes)).requires_grad_(), /*is_buffer=*/false);
    module.define(GetParam().forward);
    module.save(folder_ / "net.pt");
    return folder_ / "net.pt";
  }
  std::vector<Recipe> recipes() const { return {recipe(GetParam().model), recipe(script())}; }

  TemporaryFolder folder_;
};

TEST_P(Tasks, TrainAndAreEvaluated) {
  for (const Recipe& recipe : recipes()) {
    Recipe longer = recipe;
    longer.epochs = 20;
    const FitResult result = Trainer(longer).fit();
    ASSERT_EQ(result.history.size(), 20u) << recipe.model;
    EXPECT_LT(result.history.back().train_loss, result.history.front().train_loss) << recipe.model;
    ASSERT_TRUE(result.evaluation);
    EXPECT_TRUE(std::isfinite(result.evaluation->loss));
    EXPECT_EQ(std::isnan(result.evaluation->accuracy), recipe.loss == "mse");
    for (const auto& [name, value] : result.evaluation->metrics) EXPECT_TRUE(std::isfinite(value)) << name;
  }
}

TEST_P(Tasks, ResumeWithTheSameBits) {
  for (Recipe recipe : recipes()) {
    recipe.run_folder = folder_ / "whole";
    std::vector<at::Tensor> whole, resumed;
    const auto keep = [](std::vector<at::Tensor>& into) {
      return Callbacks{.on_step = [&into](const TrainLoop& loop) { into = copies_of(loop.job().model); }};
    };
    const FitResult uninterrupted = Trainer(recipe, keep(whole)).fit();
    recipe.run_folder = folder_ / "parts";
    Recipe first = recipe;
    first.epochs = 1;
    Trainer(first).fit();
    Trainer rest(recipe, keep(resumed));
    rest.resume();
    rest.accept_changes();
    const FitResult result = rest.fit();
    ASSERT_EQ(whole.size(), resumed.size());
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(torch::equal(whole[i], resumed[i])) << recipe.model;
    ASSERT_EQ(result.history.size(), uninterrupted.history.size());
    EXPECT_EQ(result.history.front().eval_metrics, uninterrupted.history.front().eval_metrics);
    std::filesystem::remove_all(folder_ / "whole");
    std::filesystem::remove_all(folder_ / "parts");
  }
}

TEST_P(Tasks, ArePlanned) {
  for (const Recipe& recipe : recipes()) {
    const MemoryPlan plan = plan_memory(recipe, {.batch = 12, .length = recipe.target == "price" ? 0 : 8});
    EXPECT_GT(plan.peak_bytes(), 0) << recipe.model;
    EXPECT_GT(plan.parameters, 0) << recipe.model;
  }
}

TEST_P(Tasks, CompiledStepsFollowPlainOnes) {
  for (const Recipe& recipe : recipes()) {
    Recipe compiled = recipe;
    compiled.compile = "step";
    const FitResult plain = Trainer(recipe).fit(), fast = Trainer(compiled).fit();
    EXPECT_NEAR(plain.history.back().train_loss, fast.history.back().train_loss, 2e-3) << recipe.model;
    EXPECT_NEAR(plain.evaluation->loss, fast.evaluation->loss, 2e-3) << recipe.model;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Tasks, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(TaskLoss, IsThatOfTorch) {
  seed_everything(5);
  const at::Tensor output = torch::randn({6, 3}), numbers = torch::randn({6, 3}), bits = numbers.gt(0).to(at::kFloat);
  EXPECT_TRUE(torch::equal(task_loss({.loss = LossKind::mse}, output, numbers), torch::mse_loss(output, numbers)));
  EXPECT_TRUE(torch::equal(task_loss({.loss = LossKind::huber}, output, numbers), torch::huber_loss(output, numbers)));
  EXPECT_TRUE(torch::equal(task_loss({.loss = LossKind::bce}, output, bits),
                           torch::binary_cross_entropy_with_logits(output, bits)));
  const at::Tensor pixels = torch::randn({2, 3, 4, 4});
  at::Tensor mask = torch::randint(0, 3, {2, 4, 4}, at::kByte);
  mask[0][0].fill_(255);
  const at::Tensor expected = torch::nn::functional::cross_entropy(
      pixels, mask.to(at::kLong), torch::nn::functional::CrossEntropyFuncOptions().ignore_index(255));
  EXPECT_TRUE(torch::equal(task_loss({.per_pixel = true}, pixels, mask), expected));
  const auto [right, all] = count_right({.per_pixel = true}, pixels, mask);
  EXPECT_EQ(all.item<int64_t>(), 28);
  EXPECT_LE(right.item<int64_t>(), 28);
}

/// Images of three classes.
data::Batch small_images() {
  seed_everything(6);
  const at::Tensor labels = torch::arange(6) % 3, bits = torch::one_hot(labels, 3).to(at::kFloat);
  return {{{"image", torch::rand({6, 1, 32, 32})}, {"label", labels}, {"target", bits}}, {0, 1, 2, 3, 4, 5}};
}

Model googlenet_without_dropout() {
  return models::googlenet({.num_classes = 3, .in_channels = 1, .dropout = 0, .dropout_aux = 0});
}

// The losses of GoogLeNet's auxiliary outputs count 0.3 times, and only in training.
TEST(AuxiliaryOutputs, AddToTheTrainingLoss) {
  const data::Batch batch = small_images();
  const Model model = googlenet_without_dropout();
  const std::vector<at::Tensor> outputs = model.forward_all({batch["image"]});
  ASSERT_EQ(outputs.size(), 3u);
  const auto loss_of = [&](const at::Tensor& logits) { return torch::cross_entropy_loss(logits, batch["label"]); };
  const at::Tensor expected = loss_of(outputs[0]) + 0.3 * loss_of(outputs[1]) + 0.3 * loss_of(outputs[2]);
  const StepOutput step = loss_function(model, Task{})(batch);
  EXPECT_TRUE(torch::equal(step.loss, expected)) << step.loss << " vs " << expected;
  EXPECT_TRUE(torch::equal(step.predictions, outputs[0]));
  step.loss.backward();
  for (const auto& [name, parameter] : model.named_parameters()) EXPECT_TRUE(parameter.grad().defined()) << name;
  const auto bce = [&](const at::Tensor& logits) {
    return torch::binary_cross_entropy_with_logits(logits, batch["target"]);
  };
  EXPECT_TRUE(torch::allclose(loss_function(model, {.loss = LossKind::bce, .target = "target"})(batch).loss,
                              bce(outputs[0]) + 0.3 * (bce(outputs[1]) + bce(outputs[2]))));
  model.eval();
  EXPECT_TRUE(torch::equal(loss_function(model, Task{})(batch).loss, loss_of(model.forward(batch["image"]))));
}

TEST(AuxiliaryOutputs, LearnFromTheTeacherToo) {
  const data::Batch batch = small_images();
  const Model model = googlenet_without_dropout(), teacher = models::digits_resnet({.num_classes = 3});
  teacher.eval();
  const Distillation distillation{.teacher = teacher, .weight = 0.5, .temperature = 2};
  const std::vector<at::Tensor> outputs = model.forward_all({batch["image"]});
  const at::Tensor taught = distillation.output({batch["image"]});
  const auto loss_of = [&](const at::Tensor& logits) {
    return distilled_loss(distillation, Task{}, logits, taught, batch["label"]).loss;
  };
  const at::Tensor expected = loss_of(outputs[0]) + 0.3 * (loss_of(outputs[1]) + loss_of(outputs[2]));
  EXPECT_TRUE(torch::allclose(distilled_loss_function(model, Task{}, distillation)(batch).loss, expected));
}

// From a recipe: all parts train, also with recomputed blocks, and the plan includes the auxiliary heads.
TEST(AuxiliaryOutputs, TrainFromARecipe) {
  Recipe recipe = digits_recipe();
  recipe.model = "googlenet";
  recipe.image_size = 32;
  recipe.batch_size = 8;
  recipe.lr = 0.01;
  const auto losses = [&](const std::vector<std::string>& keys) {
    Recipe own = recipe;
    for (const std::string& key : keys) own.set(key);
    TrainLoop loop(make_job(own));
    const std::vector<at::Tensor> before = copies_of(loop.job().model);
    loop.run_steps(4);
    const NamedTensors after = loop.job().model.named_parameters();
    for (size_t i = 0; i < after.size(); ++i) EXPECT_FALSE(torch::equal(before[i], after[i].second)) << after[i].first;
    return loop.take_losses();
  };
  const std::vector<double> plain = losses({});
  EXPECT_NEAR(plain.front(), 1.6 * std::log(10.0), 0.1) << "a random model, so each output's loss is near log(10)";
  EXPECT_EQ(losses({"recompute=blocks"}), plain);
  recipe.num_classes = 10;
  int64_t parameters = 0;
  for (const at::Tensor& parameter : models::googlenet({.num_classes = 10}).parameters())
    parameters += parameter.numel();
  EXPECT_EQ(plan_memory(recipe, {.batch = 4, .length = 32}).parameters, parameters);
}

TEST(TaskKeys, ThatDoNotFitAreRefused) {
  const auto error_with = [](const std::string& model, std::initializer_list<const char*> keys) {
    Recipe recipe;
    recipe.model = model;
    for (const char* key : keys) recipe.set(key);
    return error_of([&] { resolve_model(recipe); });
  };
  EXPECT_THAT(error_with("mlp", {"loss=next_token"}), HasSubstr("does not fit \"mlp\", which does not predict tokens"));
  EXPECT_THAT(error_with("gpt2", {"loss=mse"}), HasSubstr("predicts the next token"));
  EXPECT_THAT(error_with("mlp", {"loss=mse", "metrics=maee"}),
              HasSubstr("expected mae, r2, mse, rmse, got \"maee\". Did you mean \"mae\"?"));
  EXPECT_THAT(error_with("mlp", {"loss=bce", "label_smoothing=0.1"}),
              HasSubstr("label_smoothing works only with a cross-entropy loss"));
  EXPECT_THAT(error_with("unet", {"num_classes=2", "augment=crop"}),
              HasSubstr("would change the images but not their masks"));
  EXPECT_THAT(error_with("mpl", {}), HasSubstr("Did you mean \"mlp\"?"));
  EXPECT_THAT(error_with("tabular_mlp", {"metrics=f1,recall,f1"}), HasSubstr("metrics: \"f1\" is listed twice"));
}

TEST(TaskKeys, FeaturesNeedAModelThatReadsColumns) {
  const auto error_with = [](const std::string& model, const std::string& features) {
    Recipe recipe;
    recipe.model = model;
    recipe.features = features;
    return error_of([&] { resolve_model(recipe); });
  };
  EXPECT_THAT(error_with("resnet18", "a,b"),
              AllOf(HasSubstr("features = a,b: the model \"resnet18\" reads images, not feature columns"),
                    HasSubstr("tabular_mlp")));
  EXPECT_THAT(error_with("mlp", "all"), HasSubstr("\"mlp\" reads images"));
  EXPECT_THAT(error_with("bert-20m", "a"), HasSubstr("\"bert-20m\" reads texts"));
  EXPECT_THAT(error_with("test_siamese", "a"), HasSubstr("\"test_siamese\" reads several inputs"));
  EXPECT_THAT(error_with("test_pixels", "a"), HasSubstr("\"test_pixels\" reads images"));

  const TemporaryFolder folder;
  write_table(folder / "t.csv");
  Recipe recipe;
  recipe.model = "test_images";
  recipe.data = folder / "t.csv";
  recipe.target = "price";
  recipe.loss = "mse";
  recipe.features = "area,rooms";
  EXPECT_THAT(error_of([&] { make_job(recipe); }),
              AllOf(HasSubstr("features = area,rooms: the model \"test_images\" cannot read 2 feature columns"),
                    HasSubstr("[batch, 2]")));
}

TEST(TaskTargets, ThatCannotBeLearnedAreRefused) {
  const TemporaryFolder folder;
  write_table(folder / "t.csv");
  write_masks(folder / "m.safetensors");
  const auto error_with = [&](const char* file, const std::string& model, std::initializer_list<const char*> keys) {
    Recipe recipe;
    recipe.model = model;
    recipe.data = folder / file;
    for (const char* key : keys) recipe.set(key);
    return error_of([&] { resolve(recipe); });
  };
  EXPECT_THAT(error_with("t.csv", "tabular_mlp", {"target=prise"}), HasSubstr("has no field \"prise\"; it has area"));
  EXPECT_THAT(error_with("t.csv", "tabular_mlp", {"target=price", "loss=mse", "features=area,price"}),
              HasSubstr("\"price\" is the target"));
  EXPECT_THAT(error_with("t.csv", "tabular_mlp", {"target=price", "loss=bce"}), HasSubstr("expected 0 or 1"));
  EXPECT_THAT(error_with("t.csv", "tabular_mlp", {"target=price"}),
              AllOf(HasSubstr("target: \"price\" holds fractions such as 0.5 (sample 0"), HasSubstr("Set loss: mse")));
  EXPECT_THAT(error_with("m.safetensors", "mlp", {"target=mask"}), HasSubstr("predicts one class per sample"));
  EXPECT_THAT(error_with("m.safetensors", "test_pixels", {"target=mask", "num_classes=1"}),
              HasSubstr("expected classes from 0 to 0. Set num_classes."));
}

TEST(ModelDefaults, FitTheModel) {
  const auto of = [](const std::string& model) {
    Recipe recipe;
    recipe.model = model;
    return with_model_defaults(recipe);
  };
  EXPECT_EQ(of("digits_resnet").optimizer, "sgd");
  EXPECT_EQ(of("digits_resnet").lr, 0.05);
  EXPECT_EQ(of("bert-20m").optimizer, "adamw");
  EXPECT_EQ(of("bert-20m").lr, 5e-4);
  EXPECT_EQ(of("tabular_mlp").lr, 1e-3);
  Recipe chosen;
  chosen.model = "bert-20m";
  chosen.optimizer = "sgd";
  chosen.lr = 0.2;
  EXPECT_EQ(with_model_defaults(chosen), chosen);
}

/// A regression on a new table in the folder.
Recipe price_recipe(const TemporaryFolder& folder) {
  Recipe recipe;
  recipe.model = "tabular_mlp";
  recipe.data = folder / "t.csv";
  recipe.target = "price";
  recipe.loss = "mse";
  write_table(recipe.data);
  return recipe;
}

TEST(TaskMetricsKey, WithoutHeldOutDataIsWarnedAbout) {
  const TemporaryFolder folder;
  Recipe recipe = price_recipe(folder);
  recipe.epochs = 1;
  const auto logged = [&] {
    const CapturedLog log;
    Trainer(recipe).fit();
    return log.text();
  };
  constexpr const char* warning =
      "metrics = r2 has no effect, because there is no held-out data. Set eval_split or eval_data.";
  EXPECT_THAT(logged(), Not(HasSubstr("metrics = ")));
  recipe.metrics = "r2";
  EXPECT_THAT(logged(), HasSubstr(warning));
  recipe.eval_split = "0.2";
  EXPECT_THAT(logged(), Not(HasSubstr("metrics = ")));
}

TEST(EvalSplit, IsAShareOrASplit) {
  const TemporaryFolder folder;
  Recipe recipe = price_recipe(folder);
  EXPECT_TRUE(resolve(recipe).split().held_out.empty());
  recipe.eval_split = "0.25";
  EXPECT_EQ(resolve(recipe).split().held_out.size(), 15u);
  recipe.eval_split = "holdout";
  EXPECT_THAT(error_of([&] { resolve(recipe); }), HasSubstr("eval_split: expected a share such as 0.1"));
  recipe.eval_split = "1.5";
  EXPECT_THAT(error_of([&] { resolve(recipe); }), HasSubstr("between 0 and 1"));
}

}  // namespace
}  // namespace bellows::train
