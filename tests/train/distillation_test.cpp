// A recipe with a teacher: the loss, the keys, and what combines with it.
#include "bellows/train/distillation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/order/packing.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/models/register_model.h"
#include "bellows/nn/distillation.h"
#include "bellows/plan/dry_run.h"
#include "bellows/plan/plan.h"
#include "bellows/train/job.h"
#include "bellows/train/step/train_loop.h"
#include "bellows/train/student_recipe.h"
#include "tests/models/small_models.h"
#include "tests/train/ranks_jobs.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

/// A small student of the digits.
Recipe student_recipe(const std::vector<std::string>& settings = {}) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.lr = 0.02;
  for (const std::string& setting : settings) recipe.set(setting);
  return recipe;
}

std::string error_with(const std::vector<std::string>& settings) {
  return error_of([&] { make_job(student_recipe(settings)); });
}

/// A teacher that returns what a test wants.
Distillation fixed_teacher(at::Tensor output, double weight, double temperature) {
  auto module = std::make_shared<torch::nn::Module>();
  const Model model("fixed", module, [output = std::move(output)](const at::Tensor&) { return output; });
  return {.teacher = model, .weight = weight, .temperature = temperature};
}

}  // namespace

TEST(RecipeDistillation, WithoutWeightTheTeacherChangesNothing) {
  const TemporaryFolder folder;
  const std::string weights = trained_weights(folder, "digits_resnet", 4);
  EXPECT_EQ(losses_of(student_recipe({"teacher=digits_resnet", "teacher_weights=" + weights, "distill=0"})),
            losses_of(student_recipe()));
}

TEST(RecipeDistillation, AModelHasNothingToLearnFromItself) {
  const TemporaryFolder folder;
  const std::string weights = trained_weights(folder, "mlp", 4);
  const auto losses = losses_of(student_recipe({"teacher=mlp", "teacher_weights=" + weights, "weights=" + weights,
                                                "distill=1", "weight_decay=0"}),
                                4);
  for (const double loss : losses) EXPECT_NEAR(loss, 0, 1e-6);
}

TEST(RecipeDistillation, TheStudentApproachesItsTeacher) {
  const TemporaryFolder folder;
  const std::string weights = trained_weights(folder, "digits_resnet", 24);
  const std::vector<std::string> settings{"teacher=digits_resnet", "teacher_weights=" + weights, "distill=1"};
  const auto losses = losses_of(student_recipe(settings), 60);
  EXPECT_LT(losses.back(), 0.5 * losses.front());
  EXPECT_EQ(losses, losses_of(student_recipe(settings), 60)) << "not reproducible";
}

TEST(RecipeDistillation, WorksWithOtherTechniques) {
  const TemporaryFolder folder;
  const std::string weights = trained_weights(folder, "digits_resnet", 12);
  const std::vector<std::string> base{"teacher=digits_resnet", "teacher_weights=" + weights};
  const auto plain = losses_of(student_recipe(base));
  const struct {
    std::vector<std::string> settings;
    double rtol;
  } cases[] = {{{"compile=step"}, 2e-3},
               {{"compile=forward"}, 2e-3},
               {{"precision=bf16"}, 5e-2},
               {{"channels_last=true", "num_workers=2"}, 2e-3},
               {{"optimizer_impl=fused", "fast_random=true"}, 2e-3}};
  for (const auto& [settings, rtol] : cases) {
    SCOPED_TRACE(settings.front());
    std::vector<std::string> all = base;
    all.insert(all.end(), settings.begin(), settings.end());
    const auto losses = losses_of(student_recipe(all));
    ASSERT_EQ(losses.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(losses[i], plain[i], rtol * plain[i]) << "step " << i;
  }
}

TEST(RecipeDistillation, TeachersInBf16AndCompiledTeachersTeachTheSame) {
  const TemporaryFolder folder;
  const std::string weights = trained_weights(folder, "digits_resnet", 12);
  const std::vector<std::string> base{"teacher=digits_resnet", "teacher_weights=" + weights, "distill=1"};
  const auto plain = losses_of(student_recipe(base));
  const struct {
    std::vector<std::string> settings;
    double rtol;
  } cases[] = {{{"teacher_dtype=bf16"}, 2e-2},
               {{"teacher_compile=true"}, 2e-3},
               {{"teacher_dtype=bf16", "teacher_compile=true"}, 2e-2}};
  for (const auto& [settings, rtol] : cases) {
    SCOPED_TRACE(settings.front());
    std::vector<std::string> all = base;
    all.insert(all.end(), settings.begin(), settings.end());
    const auto losses = losses_of(student_recipe(all));
    EXPECT_NE(losses, plain) << "the key had no effect";
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(losses[i], plain[i], rtol * plain[i]) << "step " << i;
  }
}

TEST(RecipeDistillation, ABf16TeacherHasHalfTheBytesAndFp32Norms) {
  const TemporaryFolder folder;
  const std::string weights = trained_weights(folder, "digits_resnet", 1);
  const ResolvedJob job =
      resolve(student_recipe({"teacher=digits_resnet", "teacher_weights=" + weights, "teacher_dtype=bf16"}));
  const auto distillation = make_distillation(job, make_model(job));
  int64_t low = 0, high = 0;
  for (const at::Tensor& tensor : distillation->teacher.parameters())
    (tensor.scalar_type() == at::kBFloat16 ? low : high) += tensor.numel();
  EXPECT_GT(low, 20 * high);
  EXPECT_GT(high, 0) << "norms";
  const at::Tensor output = distillation->output({torch::rand({2, 1, 8, 8})});
  EXPECT_EQ(output.scalar_type(), at::kFloat);
  EXPECT_FALSE(output.requires_grad());
}

// Each rank has the whole teacher, and the ranks learn what one process learns. Sums of gradients are in another order.
TEST(RecipeDistillation, RanksLearnWhatOneProcessLearns) {
  const TemporaryFolder folder;
  const Recipe recipe =
      student_recipe({"teacher=digits_resnet", "teacher_weights=" + trained_weights(folder, "digits_resnet", 12),
                      "data_parallel=ddp"});
  const auto losses = losses_of_two_ranks(recipe, 20);
  const std::vector<double> alone = losses_of(
      student_recipe({"teacher=digits_resnet", "teacher_weights=" + folder.path() + "/digits_resnet.safetensors"}));
  EXPECT_EQ(losses[0], losses[1]);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(losses[0][i], alone[i], 1e-4 * alone[i]) << "step " << i;
}

// The teacher has no gradients and no state of the optimizer, but its weights and activations need memory.
TEST(RecipeDistillation, PlansTheTeachersMemory) {
  const TemporaryFolder folder;
  const std::string weights = trained_weights(folder, "digits_resnet", 1);
  const Recipe recipe = student_recipe({"teacher=digits_resnet", "teacher_weights=" + weights});
  const MemoryPlan plan = plan_memory(recipe, {128, 0});
  EXPECT_NEAR(static_cast<double>(plan.peak_bytes()) / static_cast<double>(DryRun(recipe).measure({128, 0})), 1, 0.05)
      << plan.step.to_string();
  int64_t bytes = 0;
  for (const auto& [name, tensor] : io::load_safetensors(weights)) bytes += static_cast<int64_t>(tensor.nbytes());
  EXPECT_GT(plan.peak_bytes() - plan_memory(student_recipe(), {128, 0}).peak_bytes(), bytes);

  const auto planned = [&](const char* setting) {
    return plan_memory(student_recipe({"teacher=digits_resnet", "teacher_weights=" + weights, setting}), {4, 0})
        .peak_bytes();
  };
  EXPECT_LT(planned("teacher_dtype=bf16"), planned("teacher_dtype=auto") - bytes / 3);
  EXPECT_GT(planned("teacher_compile=true"), planned("teacher_compile=false") + bytes / 2);
}

TEST(DistilledLoss, ClassesPixelsAndNumbersAreWeightedSums) {
  at::manual_seed(1);
  const double w = 0.3, t = 3;
  const at::Tensor x = torch::randn({4, 5}), taught = torch::randn({4, 5}), label = torch::randint(5, {4}, at::kLong);
  EXPECT_TRUE(at::allclose(
      distilled_loss(fixed_teacher(taught, w, t), {}, x, taught, label).loss,
      (1 - w) * at::cross_entropy_loss(x, label) + w * nn::distillation_loss(x, taught, {.temperature = t})));

  const at::Tensor maps = torch::randn({2, 5, 3, 3}), taught_maps = torch::randn({2, 5, 3, 3});
  at::Tensor mask = torch::randint(5, {2, 3, 3}, at::kLong).to(at::kByte);
  mask[0].fill_(255);  // ignored
  const at::Tensor second = maps[1].flatten(1).t(), taught_second = taught_maps[1].flatten(1).t();
  EXPECT_TRUE(
      at::allclose(distilled_loss(fixed_teacher(taught_maps, w, t), {.per_pixel = true}, maps, taught_maps, mask).loss,
                   (1 - w) * at::cross_entropy_loss(second, mask[1].flatten().to(at::kLong)) +
                       w * nn::distillation_loss(second, taught_second, {.temperature = t})));

  const at::Tensor numbers = torch::randn({4, 2}), target = torch::randn({4, 2}), teacher = torch::randn({4, 2});
  EXPECT_TRUE(
      at::allclose(distilled_loss(fixed_teacher(teacher, w, t), {.loss = LossKind::mse}, numbers, teacher, target).loss,
                   (1 - w) * at::mse_loss(numbers, target) + w * at::mse_loss(numbers, teacher)));
}

TEST(DistilledLoss, TokensCountOnlyWhereTheyHaveASuccessor) {
  at::manual_seed(2);
  const at::Tensor logits = torch::randn({2, 6, 7}), taught = torch::randn({2, 6, 7});
  at::Tensor segments = at::ones({2, 6}, at::kLong);
  segments.slice(1, 4).zero_();
  const data::Batch batch({{"tokens", torch::randint(1, 7, {2, 6}, at::kLong)}, {"segment_ids", segments}}, {}, {});
  const at::Tensor target = data::next_tokens(batch["tokens"], batch["segment_ids"]);
  const StepOutput output =
      distilled_loss(fixed_teacher(taught, 0.5, 2), {.loss = LossKind::next_token}, logits, taught, target);
  const at::Tensor counted = target.ne(-100);
  EXPECT_EQ(output.count.item<int64_t>(), 6);
  const at::Tensor expected = 0.5 * at::cross_entropy_loss(logits.flatten(0, 1), target.flatten()) +
                              0.5 * nn::distillation_loss(logits.masked_select(counted.unsqueeze(2)).view({6, 7}),
                                                          taught.masked_select(counted.unsqueeze(2)).view({6, 7}));
  EXPECT_TRUE(at::allclose(output.loss / output.count, expected));
}

TEST(RecipeDistillation, RejectsBadInput) {
  const TemporaryFolder folder;
  const std::string weights = trained_weights(folder, "mlp", 1);
  EXPECT_THAT(error_with({"teacher=mpl", "teacher_weights=" + weights}), HasSubstr("teacher = mpl: "));
  EXPECT_THAT(error_with({"teacher=mpl", "teacher_weights=" + weights}), HasSubstr("\"mlp\""));
  EXPECT_THAT(error_with({"teacher=mlp"}), HasSubstr("would have random weights. Set teacher_weights"));
  const std::string config = folder / "config.json";
  write_text_file(
      config,
      R"({"model_type": "gpt2", "vocab_size": 259, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32})");
  EXPECT_THAT(error_with({"teacher=" + config}), HasSubstr("would have random weights. Set teacher_weights"));
  EXPECT_THAT(error_with({"teacher_weights=" + weights}), HasSubstr("needs a teacher"));
  EXPECT_THAT(error_with({"teacher=gpt2", "teacher_weights=" + weights}),
              HasSubstr("of the same kind as those of mlp"));
  EXPECT_THAT(error_with({"teacher=digits_resnet", "teacher_weights=" + weights}),
              HasSubstr("teacher_weights = " + weights));
  EXPECT_THAT(error_with({"teacher=mlp", "teacher_weights=" + weights, "num_classes=12"}),
              HasSubstr("teacher_weights = " + weights));
  EXPECT_THAT(error_with({"teacher=mlp", "teacher_weights=" + folder.path() + "/none"}), HasSubstr("none"));
  EXPECT_THAT(error_with({"teacher_dtype=bf16"}), HasSubstr("teacher_dtype = bf16 needs a teacher"));
  EXPECT_THAT(error_with({"teacher_compile=true"}), HasSubstr("teacher_compile = true needs a teacher"));
  EXPECT_THAT(error_with({"distill_init=every_second"}), HasSubstr("distill_init = every_second needs a teacher"));
  EXPECT_THAT(error_with({"teacher=mlp", "teacher_weights=" + weights, "teacher_compile=true", "compile=step"}),
              HasSubstr("teacher_compile works with compile = none, got compile = step"));
  EXPECT_THAT(error_with({"teacher=mlp", "teacher_weights=" + weights, "distill_init=every_second"}),
              HasSubstr("distill_init = every_second: copy_layers: expected a model with one list of layers"));
  EXPECT_THAT(
      error_with({"teacher=mlp", "teacher_weights=" + weights, "weights=" + weights, "distill_init=every_second"}),
      HasSubstr("both set the initial weights"));
  EXPECT_THAT(error_of([] { student_recipe({"distill=1.5"}).validate(); }), HasSubstr("distill"));
  EXPECT_THAT(error_of([] { student_recipe({"distill_temperature=0"}).validate(); }), HasSubstr("distill_temperature"));
  const at::Tensor x = torch::randn({4, 5}), other = torch::randn({4, 6});
  EXPECT_THAT(error_of([&] { distilled_loss(fixed_teacher(other, 1, 2), {}, x, other, at::zeros({4}, at::kLong)); }),
              HasSubstr("Both models need the same classes or vocabulary"));
}

namespace {

std::string class_problem(const ResolvedJob& teacher, const ResolvedJob& student) {
  try {
    check_same_classes(teacher, student);
  } catch (const c10::ValueError& error) {
    return user_message(error);
  }
  return "";
}

ResolvedJob resolved(int64_t classes) {
  Recipe recipe;
  recipe.model = "mlp";
  recipe.num_classes = classes;
  return resolve_model(recipe);
}

}  // namespace

TEST(StudentRecipe, IsTheTeachersWithAnotherModel) {
  Recipe teacher;
  teacher.model = "resnet18";
  teacher.data = "photos";
  teacher.epochs = 7;
  teacher.weights = "pretrained.safetensors";
  teacher.run_folder = "runs/teacher";
  teacher.teacher = "resnet50";
  teacher.teacher_weights = "larger.safetensors";
  teacher.distill_temperature = 8;
  teacher.quantize = "int8";
  teacher.quantize_scales = "learned";
  teacher.quantize_start_step = teacher.batch_norm_freeze_step = 100;
  const Recipe student = bellows::train::student_recipe(with_model_defaults(teacher), "mlp");
  EXPECT_EQ(student.quantize, "none");
  EXPECT_EQ(student.quantize_scales, "observed");
  EXPECT_EQ(student.quantize_start_step + student.batch_norm_freeze_step, 0);
  EXPECT_EQ(student.model, "mlp");
  EXPECT_EQ(student.data, "photos");
  EXPECT_EQ(student.epochs, 7);
  EXPECT_EQ(student.weights, "") << "they belong to the teacher's model";
  EXPECT_EQ(student.run_folder, "");
  EXPECT_EQ(student.teacher, "");
  EXPECT_EQ(student.teacher_weights, "");
  EXPECT_EQ(student.distill_temperature, Recipe{}.distill_temperature);
}

TEST(StudentRecipe, DefaultsOfTheTeacherAreNotSettings) {
  Recipe teacher;
  teacher.model = "bert-20m";
  teacher.weights = "pretrained.safetensors";
  const Recipe run = with_model_defaults(teacher);
  ASSERT_EQ(run.lr, 5e-5) << "for pretrained weights";
  EXPECT_EQ(bellows::train::student_recipe(run, "distilbert-base").lr, 0);
  EXPECT_EQ(bellows::train::student_recipe(run, "distilbert-base").optimizer, "auto");
  Recipe chosen = run;
  chosen.lr = 3e-4;
  EXPECT_EQ(bellows::train::student_recipe(chosen, "distilbert-base").lr, 3e-4);
  chosen.optimizer = "lion";
  EXPECT_EQ(bellows::train::student_recipe(chosen, "distilbert-base").optimizer, "lion");
}

TEST(StudentRecipe, ClassesMustBeTheSame) {
  EXPECT_EQ(class_problem(resolved(10), resolved(10)), "");
  EXPECT_THAT(class_problem(resolved(10), resolved(5)), testing::HasSubstr("the teacher predicts 10 classes"));
}

}  // namespace bellows::train
