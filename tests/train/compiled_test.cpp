// What `compile` changes in a training: nothing that is seen in its losses beyond rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/train/ranks_jobs.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

/// Two epochs and a half, whose last batches are smaller.
Recipe recipe_with(const std::vector<std::string>& settings) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.batch_size = 40;
  recipe.lr = 0.02;
  for (const std::string& setting : settings) recipe.set(setting);
  return recipe;
}

void wait_until_compiled(const TrainLoop& loop) {
  const auto start = std::chrono::steady_clock::now();
  while (!loop.is_compiled() && std::chrono::steady_clock::now() - start < std::chrono::seconds(240))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(loop.is_compiled());
}

struct CompiledCourse {
  std::vector<double> losses;
  Evaluation evaluation;
  int64_t samples = 0;
};

CompiledCourse compiled_course(const Recipe& recipe, int64_t steps = 24) {
  TrainLoop loop(make_job(recipe));
  loop.run_steps(6);
  loop.evaluate();
  wait_until_compiled(loop);
  loop.run_steps(steps - 6);
  return {loop.take_losses(), loop.evaluate(), loop.sample_count()};
}

/// Differences of rounding grow from step to step.
void expect_alike(const CompiledCourse& got, const CompiledCourse& plain, double rtol) {
  EXPECT_EQ(got.samples, plain.samples);
  ASSERT_EQ(got.losses.size(), plain.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i)
    EXPECT_NEAR(got.losses[i], plain.losses[i], rtol * std::abs(plain.losses[i])) << "step " << i;
  EXPECT_NEAR(got.evaluation.loss, plain.evaluation.loss, rtol * plain.evaluation.loss);
  EXPECT_LT(got.losses.back(), got.losses.front());
}

}  // namespace

TEST(Compiled, StepsLearnAsPlainOnes) {
  const std::vector<std::vector<std::string>> all{
      {},
      {"gradient_accumulation_steps=3"},
      {"max_grad_norm=0.5"},
      {"ema_decay=0.9", "num_workers=2", "lr_schedule=cosine"},
      {"optimizer=adamw", "lr=0.002", "optimizer_impl=loop"},
      {"optimizer=adamw", "lr=0.002", "optimizer_impl=auto", "gradient_accumulation_steps=2", "max_grad_value=0.1"},
      {"on_nan=skip", "train_metrics=sync"},
      {"sample_stats=true", "optimizer_impl=foreach", "allocator_reuse=true"}};
  for (const auto& settings : all) {
    const std::string what = settings.empty() ? "plain" : settings.front();
    const CompiledCourse plain = compiled_course(recipe_with(settings));
    for (const char* part : {"forward", "step"}) {
      SCOPED_TRACE(what + ", compile: " + part);
      Recipe recipe = recipe_with(settings);
      recipe.compile = part;
      expect_alike(compiled_course(recipe), plain, 2e-3);
    }
  }
}

// Later steps differ by 3e-3, as they do with channels_last: a sum in another order moves a value over the edge of a ReLU.
TEST(Compiled, NetworksOfConvolutionsLearnAsPlainOnes) {
  const CompiledCourse plain = compiled_course(recipe_with({"model=digits_resnet"}), 12);
  for (const char* part : {"forward", "step"}) {
    SCOPED_TRACE(part);
    Recipe recipe = recipe_with({"model=digits_resnet"});
    recipe.compile = part;
    expect_alike(compiled_course(recipe, 12), plain, 1e-3);
  }
}

// Casts stand elsewhere: what stays inside of a kernel is not rounded to bf16.
TEST(Compiled, StepsInBf16LearnAsPlainOnes) {
  const CompiledCourse plain = compiled_course(recipe_with({"precision=bf16"}));
  const CompiledCourse compiled = compiled_course(recipe_with({"precision=bf16", "compile=step"}));
  expect_alike(compiled, plain, 3e-2);
}

TEST(Compiled, TimeOfWhatIsDeferredIsTold) {
  TrainLoop loop(make_job(recipe_with({"model=digits_resnet", "compile=step"})));
  loop.run_steps(6);
  const PhaseSeconds before = loop.phase_seconds();
  const auto start = std::chrono::steady_clock::now();
  loop.run_steps(6);
  const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const PhaseSeconds& now = loop.phase_seconds();
  const double told = now.load + now.forward + now.backward + now.update -
                      (before.load + before.forward + before.backward + before.update);
  EXPECT_GT(told, 0.8 * all);
  EXPECT_LT(told, 1.01 * all);
}

TEST(Compiled, ALossThatIsNoNumberIsFoundWhenItIsLookedAt) {
  TrainLoop loop(make_job(recipe_with({"compile=step", "lr=1e30"})));
  EXPECT_THAT(error_of([&] {
                loop.run_steps(8);
                loop.take_losses();
              }),
              HasSubstr("the loss became"));
}

// Techniques that change how activations, gradients and updates are handled give the same results in compiled steps.
TEST(Compiled, EveryCombinationLearnsAsThePlainOne) {
  struct Combination {
    std::vector<std::string> settings;
    double rtol = 2e-3;
    int64_t steps = 24;
  };
  const TemporaryFolder folder;
  const std::vector<Combination> all{
      {{"recompute=blocks", "model=digits_resnet"}, 5e-3, 10},
      // A difference in the last bit decides whether a value is rounded to bf16 up or down.
      {{"activation_dtype=bf16", "model=digits_resnet"}, 3e-2, 10},
      {{"offload_folder=" + folder.path(), "model=digits_resnet"}, 5e-3, 10},
      {{"optimizer_in_backward=true"}},
      {{"optimizer_in_backward=true", "optimizer=adamw", "lr=0.002"}},
      {{"gradient_accumulation_dtype=fp32", "gradient_accumulation_steps=2"}},
      {{"gradient_accumulation_dtype=bf16", "gradient_accumulation_steps=2"}, 1e-2}};
  for (const auto& [settings, rtol, steps] : all) {
    const CompiledCourse plain = compiled_course(recipe_with(settings), steps);
    for (const char* part : {"forward", "step"}) {
      SCOPED_TRACE(settings.front() + ", compile: " + part);
      Recipe recipe = recipe_with(settings);
      recipe.compile = part;
      recipe.validate();
      expect_alike(compiled_course(recipe, steps), plain, rtol);
    }
  }
}

/// The losses of each rank.
std::vector<std::vector<double>> courses_of_ranks(int count, const std::vector<std::string>& settings) {
  std::vector<Job> jobs = jobs_for(count, recipe_with(settings));
  std::vector<std::vector<double>> losses(jobs.size());
  parallel::testing::run_ranks(count, [&](const comm::Group& group) {
    Job& job = jobs[static_cast<size_t>(group.rank())];
    job.ranks = group;
    TrainLoop loop(std::move(job));
    loop.run_steps(14);
    losses[static_cast<size_t>(group.rank())] = loop.take_losses();
  });
  return losses;
}

// Each rank compiles its own step; the exchange of gradients ends one program and begins the next.
void expect_ranks_learn_as_plain_ones(int count, const std::vector<std::string>& settings,
                                      const std::vector<std::string>& compiled_settings, double rtol) {
  SCOPED_TRACE(c10::str(settings.front(), " on ", count, " ranks, ", compiled_settings.back()));
  std::vector<std::string> both = settings;
  both.insert(both.end(), compiled_settings.begin(), compiled_settings.end());
  const auto plain = courses_of_ranks(count, settings), compiled = courses_of_ranks(count, both);
  EXPECT_EQ(compiled, courses_of_ranks(count, both)) << "not reproducible";
  for (size_t rank = 0; rank < plain.size(); ++rank) {
    ASSERT_EQ(compiled[rank].size(), plain[rank].size());
    for (size_t i = 0; i < plain[rank].size(); ++i)
      EXPECT_NEAR(compiled[rank][i], plain[rank][i], rtol * plain[rank][i]) << "rank " << rank << ", step " << i;
  }
}

TEST(Compiled, RanksLearnAsPlainOnes) {
  for (const char* strategy :
       {"data_parallel=ddp", "data_parallel=zero1", "data_parallel=zero2", "data_parallel=zero3"}) {
    for (const char* part : {"compile=forward", "compile=step"})
      expect_ranks_learn_as_plain_ones(2, {strategy}, {part}, 2e-3);
    expect_ranks_learn_as_plain_ones(4, {strategy}, {"compile=step"}, 2e-3);
  }
}

TEST(Compiled, RanksLearnAsPlainOnesUnderAMemoryBudget) {
  for (const char* strategy : {"data_parallel=ddp", "data_parallel=zero2"})
    expect_ranks_learn_as_plain_ones(2, {strategy, "model=digits_resnet"}, {"compile=step", "memory_budget=0.5"}, 5e-3);
}

// Recomputation within the compiled step changes only when activations are computed. The MLP is too small for the budget: it warns.
TEST(Compiled, LearnsTheSameUnderAMemoryBudget) {
  for (const char* model : {"model=mlp", "model=digits_resnet"}) {
    SCOPED_TRACE(model);
    const CompiledCourse whole = compiled_course(recipe_with({model, "compile=step"}), 10);
    expect_alike(compiled_course(recipe_with({model, "compile=step", "memory_budget=0.5"}), 10), whole, 5e-3);
  }
}

TEST(Compiled, RejectsAMemoryBudgetThatHasNoEffect) {
  const auto error_with = [](const std::vector<std::string>& settings) {
    return error_of([&] { recipe_with(settings).validate(); });
  };
  EXPECT_THAT(error_with({"memory_budget=0.5"}), HasSubstr("compile = step"));
  EXPECT_THAT(error_with({"memory_budget=0.5", "compile=forward"}), HasSubstr("compile = step"));
  EXPECT_THAT(error_with({"memory_budget=0", "compile=step"}), HasSubstr("larger than 0"));
  EXPECT_THAT(error_with({"memory_budget=1.5", "compile=step"}), HasSubstr("memory_budget"));
  EXPECT_EQ(error_with({"memory_budget=0.5", "compile=step"}), "");
}

TEST(Compiled, IsForTheCpu) {
  Recipe recipe = recipe_with({"device=cuda"});
  recipe.compile = "step";
  EXPECT_THAT(error_of([&] { recipe.validate(); }), HasSubstr("CPU only"));
  EXPECT_THAT(error_of([] { recipe_with({"compile=all"}); }), HasSubstr("none, forward, step"));
}

}  // namespace bellows::train
