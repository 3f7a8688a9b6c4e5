#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "bellows/checkpoint/folder.h"
#include "bellows/core/seed.h"
#include "bellows/optim/optimizers.h"
#include "bellows/train/trainer.h"
#include "tests/train/run_part.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

void expect_same_history(const FitResult& a, const FitResult& b) {
  ASSERT_EQ(a.history.size(), b.history.size());
  for (size_t i = 0; i < a.history.size(); ++i) {
    EXPECT_EQ(a.history[i].epoch, b.history[i].epoch);
    EXPECT_EQ(a.history[i].steps, b.history[i].steps);
    EXPECT_EQ(a.history[i].train_loss, b.history[i].train_loss);
    EXPECT_EQ(a.history[i].eval_loss, b.history[i].eval_loss);
    EXPECT_EQ(a.history[i].eval_accuracy, b.history[i].eval_accuracy);
  }
  EXPECT_EQ(a.steps, b.steps);
}

Recipe resumable(const std::string& folder) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.image_size = 8;
  recipe.epochs = 3;
  recipe.augment = "crop";
  recipe.warmup_epochs = 1.5;
  recipe.num_workers = 2;
  recipe.run_folder = folder;
  return recipe;
}

}  // namespace

class ResumeTest : public testing::TestWithParam<int> {};

/// Stops after the first step, within epochs, and at the very ends of epochs.
TEST_P(ResumeTest, SameBitsAsTheRunThatWasNeverStopped) {
  const TemporaryFolder one, two;
  const RunTrace whole = run_part(resumable(one.path()), false, 0);
  ASSERT_EQ(whole.losses.size(), 36u);
  RunTrace parts = run_part(resumable(two.path()), false, GetParam());
  EXPECT_TRUE(parts.result.stopped);
  EXPECT_EQ(parts.losses.size(), static_cast<size_t>(GetParam()));
  EXPECT_THAT(parts.result.checkpoint, HasSubstr(two.path()));
  seed_everything(999);  // a new process would have other generators
  const RunTrace rest = run_part(resumable(two.path()), true, 0);
  EXPECT_FALSE(rest.result.stopped);
  parts.losses.insert(parts.losses.end(), rest.losses.begin(), rest.losses.end());
  EXPECT_EQ(parts.losses, whole.losses);
  expect_same_bits(rest.weights, whole.weights);
  expect_same_history(rest.result, whole.result);
}

INSTANTIATE_TEST_SUITE_P(Steps, ResumeTest, testing::Values(1, 7, 12, 24, 29));

TEST(Resume, EverySwitchOnAndManyTimes) {
  const TemporaryFolder one, two;
  const auto recipe_in = [](const std::string& folder) {
    Recipe recipe = resumable(folder);
    recipe.model = "digits_resnet";
    recipe.optimizer = "adamw";
    recipe.lr = 0.005;
    recipe.optimizer_impl = "fused";
    recipe.optimizer_state = "int8";
    recipe.channels_last = true;
    recipe.precision = "bf16";
    recipe.save_steps = 5;
    recipe.image_cache_mb = 4;
    recipe.activation_dtype = "int8";
    return recipe;
  };
  const RunTrace whole = run_part(recipe_in(one.path()), false, 0);
  std::vector<float> losses;
  std::vector<at::Tensor> weights;
  RunTrace part;
  bool resume = false;
  do {
    part = run_part(recipe_in(two.path()), resume, 9);
    losses.insert(losses.end(), part.losses.begin(), part.losses.end());
    if (!part.weights.empty()) weights = part.weights;  // the last part finds only an evaluation left to do
    resume = true;
  } while (part.result.stopped);
  EXPECT_EQ(losses, whole.losses);
  expect_same_bits(weights, whole.weights);
  expect_same_history(part.result, whole.result);
}

/// Params: settings – of a resumable recipe
void expect_resumed_bits(const std::vector<std::string>& settings) {
  const auto recipe_in = [&](const std::string& folder) {
    Recipe recipe = resumable(folder);
    for (const std::string& setting : settings) recipe.set(setting);
    return recipe;
  };
  const TemporaryFolder one;
  const RunTrace whole = run_part(recipe_in(one.path()), false, 0);
  for (const int stop_after : {1, 12, 17}) {
    SCOPED_TRACE(c10::str(settings.back(), ", stopped after step ", stop_after));
    const TemporaryFolder two;
    RunTrace parts = run_part(recipe_in(two.path()), false, stop_after);
    const RunTrace rest = run_part(recipe_in(two.path()), true, 0);
    parts.losses.insert(parts.losses.end(), rest.losses.begin(), rest.losses.end());
    EXPECT_EQ(parts.losses, whole.losses);
    expect_same_bits(rest.weights, whole.weights);
  }
}

TEST(Resume, CompiledStepsGiveTheSameBits) {
  expect_resumed_bits({"compile=step"});
  expect_resumed_bits({"compile=step", "precision=bf16"});
  expect_resumed_bits({"compile=step", "model=digits_resnet", "epochs=2"});
  expect_resumed_bits({"compile=forward", "optimizer=adamw", "lr=0.002", "max_grad_norm=0.5"});
}

TEST(Resume, CompiledStepsWithQuantizationGiveTheSameBits) {
  const std::vector<std::string> settings{"quantize=int8", "compile=step", "model=digits_resnet", "epochs=2"};
  expect_resumed_bits(settings);
  std::vector<std::string> staged = settings;
  staged.insert(staged.end(), {"quantize_start_step=5", "batch_norm_freeze_step=14"});
  expect_resumed_bits(staged);
}

TEST(Resume, RunsWithATeacherGiveTheSameBits) {
  const TemporaryFolder folder;
  const std::string weights = trained_weights(folder, "digits_resnet", 4);
  for (const char* compile : {"compile=none", "compile=step"})
    expect_resumed_bits({"teacher=digits_resnet", "teacher_weights=" + weights, "epochs=2", compile});
}

TEST(Resume, RunsWithATeachersCacheDtypeAndCompilationGiveTheSameBits) {
  const TemporaryFolder folder;
  const std::string weights = trained_weights(folder, "digits_resnet", 4);
  const std::vector<std::string> base{"teacher=digits_resnet", "teacher_weights=" + weights, "image_size=0",
                                      "augment=none", "epochs=2"};
  const std::vector<std::string> cases[] = {{"teacher_cache=" + folder.path() + "/all"},
                                            {"teacher_top=2", "teacher_cache=" + folder.path() + "/top"},
                                            {"teacher_dtype=bf16"},
                                            {"teacher_compile=true"}};
  for (std::vector<std::string> settings : cases) {
    settings.insert(settings.begin(), base.begin(), base.end());
    expect_resumed_bits(settings);
  }
}

TEST(Resume, RandomGeneratorsAndTheCallersModel) {
  const auto fit = [](const std::string& folder, bool resume, int64_t epochs) {
    at::manual_seed(21);
    const Model model = dropout_net();
    torch::optim::RMSprop optimizer(model.parameters(), torch::optim::RMSpropOptions(0.01).momentum(0.9));
    Recipe recipe;
    recipe.epochs = epochs;
    recipe.run_folder = folder;
    Trainer trainer(recipe);
    trainer.resume(resume);
    trainer.fit(model, optimizer, cross_entropy_loss(model), blobs(70).shuffle(5));
    return copies_of(model);
  };
  const TemporaryFolder one, two;
  const auto whole = fit(one.path(), false, 4);
  fit(two.path(), false, 2);
  seed_everything(5);
  expect_same_bits(fit(two.path(), true, 4), whole);
}

TEST(Resume, ADamagedNewestCheckpointCostsOnlyItsSteps) {
  const TemporaryFolder one, two;
  const RunTrace whole = run_part(resumable(one.path()), false, 0);
  const RunTrace first = run_part(resumable(two.path()), false, 30);
  const std::string bytes = read_bytes(first.result.checkpoint);
  write_bytes(first.result.checkpoint, bytes.substr(0, bytes.size() - 100));
  const CapturedLog log;
  const RunTrace rest = run_part(resumable(two.path()), true, 0);
  EXPECT_THAT(log.text(), HasSubstr("step-000000000030.pt is damaged and skipped"));
  EXPECT_THAT(log.text(), HasSubstr("from step 24"));
  EXPECT_EQ(rest.losses, std::vector<float>(whole.losses.begin() + 24, whole.losses.end()));
  expect_same_bits(rest.weights, whole.weights);
}

TEST(Resume, AFinishedRunStaysFinished) {
  const TemporaryFolder folder;
  const RunTrace whole = run_part(resumable(folder.path()), false, 0);
  const RunTrace again = run_part(resumable(folder.path()), true, 0);
  EXPECT_TRUE(again.losses.empty());
  EXPECT_EQ(again.result.checkpoint, whole.result.checkpoint);
  expect_same_history(again.result, whole.result);
}

TEST(Resume, FromNothingBeginsAtTheStart) {
  const TemporaryFolder folder;
  Recipe recipe = resumable(folder.path());
  recipe.epochs = 2;
  const CapturedLog log;
  EXPECT_EQ(run_part(recipe, true, 0).losses.size(), 24u);
  EXPECT_THAT(log.text(), HasSubstr("Training starts from the beginning"));
}

TEST(Resume, AChangedRecipeIsSaid) {
  const TemporaryFolder folder;
  Recipe recipe = resumable(folder.path());
  run_part(recipe, false, 3);
  recipe.lr = 0.025;
  EXPECT_THAT(error_of([&] { run_part(recipe, true, 1); }),
              AllOf(HasSubstr("would differ from the original run"), HasSubstr("recipe.lr: 0.1 before, 0.025 now"),
                    HasSubstr("accept")));
  const CapturedLog log;
  run_part(recipe, true, 1, /*accept_changes=*/true);
  EXPECT_THAT(log.text(), HasSubstr("recipe.lr: 0.1 before, 0.025 now"));
}

TEST(Resume, WhatChangesNoBitIsOnlySaid) {
  const TemporaryFolder folder;
  Recipe recipe = resumable(folder.path());
  run_part(recipe, false, 3);
  recipe.num_workers = 3;
  recipe.epochs += 1;
  const CapturedLog log;
  run_part(recipe, true, 1);
  EXPECT_THAT(log.text(), AllOf(HasSubstr("num_workers"), HasSubstr("without effect")));
}

TEST(Resume, ALaterEndIsAnotherRunWhereTheRateFallsTowardsIt) {
  const TemporaryFolder folder;
  Recipe recipe = resumable(folder.path());
  recipe.lr_schedule = "cosine";
  run_part(recipe, false, 3);
  recipe.epochs += 1;
  EXPECT_THAT(error_of([&] { run_part(recipe, true, 1); }), HasSubstr("recipe.epochs"));
}

TEST(Resume, ARateThatFellStaysDown) {
  const TemporaryFolder one, two;
  const auto recipe_in = [](const std::string& folder) {
    Recipe recipe = resumable(folder);
    recipe.lr = 1e-9;  // nothing gets better: the plateau comes after four evaluations
    recipe.lr_schedule = "plateau";
    recipe.eval_steps = 1;
    recipe.save_steps = 1;
    return recipe;
  };
  const RunTrace whole = run_part(recipe_in(one.path()), false, 0);
  run_part(recipe_in(two.path()), false, 5);
  expect_same_bits(run_part(recipe_in(two.path()), true, 0).weights, whole.weights);
}

TEST(Resume, AcceptedOptionsAreUsed) {
  const TemporaryFolder folder;
  Recipe recipe = resumable(folder.path());
  run_part(recipe, false, 12);
  recipe.lr = 1e-30;  // too small to change a weight
  recipe.momentum = 0;
  recipe.weight_decay = 0;
  recipe.ema_decay = 0.9;
  const checkpoint::State saved = *checkpoint::Folder(folder.path()).newest();
  const std::vector<at::Tensor> after = run_part(recipe, true, 2, /*accept_changes=*/true).weights;
  EXPECT_TRUE(torch::equal(after[0], saved.model.front().second));
}

TEST(Resume, AnotherOptimizerIsRefusedInWords) {
  const TemporaryFolder folder;
  Recipe recipe = resumable(folder.path());
  run_part(recipe, false, 3);
  recipe.optimizer = "adamw";
  EXPECT_THAT(error_of([&] { run_part(recipe, true, 1, /*accept_changes=*/true); }),
              AllOf(HasSubstr("a different recipe.optimizer"), HasSubstr("Start a new run")));
}

TEST(Resume, OtherDataIsRefused) {
  const TemporaryFolder folder, data;
  Recipe recipe = resumable(folder.path());
  recipe.data = data / "train.tar";
  std::filesystem::copy_file(digits_folder() + "/train-000.tar", recipe.data);
  run_part(recipe, false, 3);
  std::filesystem::remove(recipe.data);
  std::filesystem::copy_file(digits_folder() + "/train-001.tar", recipe.data);
  EXPECT_THAT(error_of([&] { run_part(recipe, true, 1); }), AllOf(HasSubstr("data"), HasSubstr("different samples")));
}

// In the middle of an epoch another batch size or seed would repeat some samples and leave others out.
TEST(Resume, WhatDecidesTheOrderStaysUntilTheEpochsEnd) {
  const TemporaryFolder folder;
  run_part(resumable(folder.path()), false, 7);
  Recipe other = resumable(folder.path());
  other.batch_size = 16;
  EXPECT_THAT(error_of([&] { run_part(other, true, 0); }),
              AllOf(HasSubstr("in the middle of epoch 1 (batch 7)"), HasSubstr("batch_size: 32 before, 16 now")));
  run_part(resumable(folder.path()), true, 5);  // to the epoch's end
  EXPECT_EQ(run_part(other, true, 1, /*accept_changes=*/true).losses.size(), 1u);
}

TEST(Resume, AUsedFolderIsNotOverwrittenByAccident) {
  const TemporaryFolder folder;
  run_part(resumable(folder.path()), false, 2);
  EXPECT_THAT(error_of([&] { run_part(resumable(folder.path()), false, 0); }),
              HasSubstr("checkpoints of an earlier run"));
}

TEST(Resume, AStopBeforeTheFirstStepIsKept) {
  const TemporaryFolder folder;
  Trainer trainer(resumable(folder.path()));
  trainer.request_stop();
  const FitResult result = trainer.fit();
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.steps, 0);
  EXPECT_EQ(run_part(resumable(folder.path()), true, 0).losses.size(), 36u);
}

}  // namespace bellows::train
