// Recipes that are compared with a first one, on several ranks, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "bellows/ladder/comparison/comparison.h"
#include "bellows/ladder/html_report.h"
#include "bellows/ladder/json_report.h"
#include "bellows/models/registry.h"
#include "tests/ladder/ladder_world.h"

namespace bellows::train {

namespace {

using ::testing::HasSubstr;

/// A fake job of several ranks that sends 1000 bytes in a step.
class SendingJob final : public LadderJob {
 public:
  SendingJob(LadderWorld& world, const Recipe& recipe, int ranks) : job_(world, &recipe), ranks_(ranks) {}
  int64_t run_steps(int64_t n) override {
    steps_ += n;
    return job_.run_steps(n);
  }
  int64_t steps_per_epoch() const override { return job_.steps_per_epoch(); }
  int64_t samples_per_epoch() const override { return job_.samples_per_epoch(); }
  double evaluate() override { return job_.evaluate(); }
  int64_t take_peak_bytes() override { return job_.take_peak_bytes(); }
  int64_t sent_bytes() override { return ranks_ == 1 ? -1 : 1000 * steps_ + 77; }

 private:
  FakeLadderJob job_;
  int ranks_;
  int64_t steps_ = 0;
};

class SendingJobs final : public ComparisonJobs {
 public:
  explicit SendingJobs(LadderWorld& world) : world_(world) {}
  std::unique_ptr<LadderJob> with(const Recipe& recipe, uint64_t, int ranks, int64_t threads) override {
    started[recipe.data_parallel] = {ranks, threads};
    return std::make_unique<SendingJob>(world_, recipe, ranks);
  }
  std::map<std::string, std::pair<int, int64_t>> started;

 private:
  LadderWorld& world_;
};

ComparedRecipe strategy(const std::string& name, int ranks, bool lossy = false) {
  ComparedRecipe recipe{.name = name, .title = name, .recipe = {}, .ranks = ranks, .lossy = lossy};
  recipe.recipe.batch_size = 32;
  recipe.recipe.data_parallel = name;
  return recipe;
}

struct Compared {
  LadderReport report;
  std::map<std::string, std::pair<int, int64_t>> started;
};

Compared compare(LadderWorld& world, const std::vector<ComparedRecipe>& others, LadderOptions options = {},
                 int64_t threads = 4) {
  SendingJobs jobs(world);
  LadderInstruments instruments;
  instruments.seconds = [&world] { return world.clock_s; };
  LadderReport report = compare_recipes(strategy("ddp", 1), others, threads, jobs, options, instruments);
  return {std::move(report), jobs.started};
}

/// zero1 takes half the time of ddp, and zero3 twice the time.
double ms_by_strategy(const Recipe* recipe) {
  return recipe->data_parallel == "zero1" ? 0.5 : recipe->data_parallel == "zero3" ? 2.0 : 1.0;
}

}  // namespace

TEST(Comparison, ComparesEveryRecipeWithTheFirst) {
  LadderWorld world;
  world.ms_per_sample = ms_by_strategy;
  world.bytes = [](const Recipe* recipe) { return int64_t{recipe->data_parallel == "zero3" ? 500 : 1000}; };
  const auto [report, started] = compare(world, {strategy("zero1", 2), strategy("zero3", 4), strategy("zero2", 8)});
  ASSERT_EQ(report.rungs.size(), 3u);
  const RungResult &zero1 = report.rungs[0], &zero3 = report.rungs[1], &zero2 = report.rungs[2];
  EXPECT_EQ(zero1.verdict, Verdict::kept) << zero1.note;
  EXPECT_NEAR(zero1.speedup.ratio, 2, 0.02);
  EXPECT_EQ(zero3.verdict, Verdict::slower);
  EXPECT_NEAR(zero3.speedup.ratio, 0.5, 0.01) << "not against zero1, which was kept";
  EXPECT_NEAR(zero3.samples_per_s, 500, 10);
  EXPECT_EQ(zero2.verdict, Verdict::no_effect);
  EXPECT_EQ(started.at("ddp"), (std::pair<int, int64_t>{1, 4}));
  EXPECT_EQ(started.at("zero1"), (std::pair<int, int64_t>{2, 2}));
  EXPECT_EQ(started.at("zero3"), (std::pair<int, int64_t>{4, 1}));
  EXPECT_EQ(started.at("zero2"), (std::pair<int, int64_t>{8, 1})) << "at least one thread";
  EXPECT_TRUE(std::isnan(report.plain.sent_bytes));
  EXPECT_EQ(zero1.sent_bytes, 1000) << "of a step, without what was sent before";
  EXPECT_NEAR(zero3.memory_over_start, 2, 0.01);
  EXPECT_NEAR(zero1.target_over_start, 2, 0.1);
  EXPECT_EQ(&report.top(), &zero1);
  EXPECT_NEAR(report.speedup.ratio, 2, 0.02);
  EXPECT_THAT(report.recipe_yaml, HasSubstr("data_parallel: zero1"));
}

TEST(Comparison, TheFastestIsTheTopEvenIfItComesFirst) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) {
    return recipe->data_parallel == "zero1" ? 0.5 : recipe->data_parallel == "zero2" ? 0.8 : 1.0;
  };
  const LadderReport report = compare(world, {strategy("zero1", 2), strategy("zero2", 2)}).report;
  EXPECT_TRUE(report.rungs[1].kept());
  EXPECT_EQ(report.top().technique, "zero1");
  EXPECT_DOUBLE_EQ(report.speedup.ratio, report.rungs[0].speedup.ratio);
}

TEST(Comparison, AFasterRecipeThatMissesTheTargetIsNotKept) {
  LadderWorld world;
  world.ms_per_sample = ms_by_strategy;
  world.epochs_needed = [](const Recipe* recipe) { return recipe->data_parallel == "zero1" ? 1000.0 : 4.0; };
  const LadderReport report = compare(world, {strategy("zero1", 2)}, {.max_epochs = 6}).report;
  EXPECT_EQ(report.rungs[0].verdict, Verdict::misses_target);
  EXPECT_EQ(&report.top(), &report.plain);
  EXPECT_TRUE(std::isnan(report.speedup.ratio));
}

TEST(Comparison, ALossyRecipeMustReachTheTargetEarlier) {
  LadderWorld world;
  world.ms_per_sample = ms_by_strategy;
  world.epochs_needed = [](const Recipe* recipe) { return recipe->data_parallel == "zero1" ? 9.0 : 4.0; };
  EXPECT_EQ(compare(world, {strategy("zero1", 2, /*lossy=*/true)}).report.rungs[0].verdict, Verdict::later_at_target);
}

TEST(Comparison, AnObstacleAndAFailureAreVerdicts) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) {
    TORCH_CHECK_VALUE(recipe->data_parallel != "zero2", "no memory");
    return 1.0;
  };
  ComparedRecipe refused = strategy("zero1", 2);
  refused.obstacle = "refused";
  const LadderReport report = compare(world, {refused, strategy("zero2", 2)}).report;
  EXPECT_EQ(report.rungs[0].verdict, Verdict::does_not_apply);
  EXPECT_EQ(report.rungs[0].note, "refused");
  EXPECT_EQ(report.rungs[1].verdict, Verdict::failed);
  EXPECT_THAT(report.rungs[1].note, HasSubstr("no memory"));
  EXPECT_FALSE(has_measured_rung(report));
  EXPECT_THAT(ladder_page(report), HasSubstr("No configuration was measured"));
}

TEST(Comparison, TheReportHasTheUnchangedRecipe) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) {
    EXPECT_EQ(recipe->target_accuracy, 0);
    EXPECT_EQ(recipe->run_folder, "");
    return ms_by_strategy(recipe);
  };
  ComparedRecipe fast = strategy("zero1", 2);
  fast.recipe.target_accuracy = 0.75;
  fast.recipe.run_folder = "runs/a";
  const LadderReport report = compare(world, {fast}).report;
  ASSERT_TRUE(report.rungs[0].kept());
  const Recipe written = Recipe::parse(report.recipe_yaml);
  EXPECT_EQ(written.target_accuracy, 0.75);
  EXPECT_EQ(written.run_folder, "runs/a");
  EXPECT_EQ(written.data_parallel, "zero1");
}

TEST(Comparison, OtherGrowthOfBatchesIsAnObstacle) {
  LadderWorld world;
  ComparedRecipe grows = strategy("zero1", 2);
  grows.recipe.batch_size_start = 8;
  grows.recipe.growth_epochs = 2;
  const LadderReport report = compare(world, {grows}).report;
  EXPECT_EQ(report.rungs[0].verdict, Verdict::does_not_apply);
  EXPECT_THAT(report.rungs[0].note, HasSubstr("batch_size_start"));
}

TEST(Comparison, ReportsHaveRanksAndBytes) {
  LadderWorld world;
  world.ms_per_sample = ms_by_strategy;
  const LadderReport report = compare(world, {strategy("zero1", 2)}).report;
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["goal"], "comparison");
  EXPECT_EQ(json["baseline"]["ranks"], 1);
  EXPECT_EQ(json["baseline"]["threads_per_rank"], 4);
  EXPECT_TRUE(json["baseline"]["sent_bytes_per_step"].is_null());
  EXPECT_EQ(json["rungs"][0]["ranks"], 2);
  EXPECT_EQ(json["rungs"][0]["sent_bytes_per_step"], 1000);
  const std::string page = ladder_page(report);
  EXPECT_THAT(page, HasSubstr("zero1: <strong>2.0"));
  EXPECT_THAT(page, HasSubstr("2 × 2 threads"));
  EXPECT_EQ(place_text(report.plain), "1 × 4 threads");
}

TEST(Comparison, RefusesSenselessOptions) {
  LadderWorld world;
  EXPECT_THROW(compare(world, {}, {.pairs = 4}), c10::ValueError);
  EXPECT_THROW(compare(world, {}, {.target_accuracy = 1.5}), c10::ValueError);
  EXPECT_THROW(compare(world, {}, {}, /*threads=*/0), c10::ValueError);
  EXPECT_THROW(compare(world, {strategy("plain", 2)}), c10::ValueError) << "the name of the first recipe";
  EXPECT_THROW(compare(world, {strategy("zero1", 2), strategy("zero1", 4)}), c10::ValueError);
  Registry<ParallelTechnique> techniques("technique");
  register_parallel_techniques(techniques);
  EXPECT_THROW(parallel_recipes(Recipe(), 1, techniques), c10::ValueError);
}

TEST(ParallelTechniques, TitlesFitTheirColumn) {
  Registry<ParallelTechnique> techniques("technique");
  register_parallel_techniques(techniques);
  for (const ParallelTechnique& technique : techniques.rows()) {
    std::istringstream words(technique.title);
    for (std::string word; words >> word;) EXPECT_LE(word.size(), parallel_title_width) << word;
  }
}

TEST(ParallelTechniques, KeepTheOtherSettings) {
  Registry<ParallelTechnique> techniques("technique");
  register_parallel_techniques(techniques);
  Recipe recipe;
  recipe.target_accuracy = 0.75;
  for (const ComparedRecipe& compared : parallel_recipes(recipe, 2, techniques)) {
    EXPECT_EQ(compared.recipe.target_accuracy, 0.75) << compared.name;
    // No plan divides the default model, and it has neither sequences nor a list of parts.
    const std::set<std::string> refused = {"tensor", "context", "pipeline"};
    EXPECT_EQ(compared.obstacle.empty(), refused.count(compared.name) == 0)
        << compared.name << ": " << compared.obstacle;
  }
}

TEST(ParallelTechniques, ChangeTheRecipeOrSayWhyNot) {
  Registry<ParallelTechnique> techniques("technique");
  register_parallel_techniques(techniques);
  Recipe recipe;
  recipe.compile = "step";
  std::map<std::string, ComparedRecipe> by_name;
  for (ComparedRecipe& compared : parallel_recipes(recipe, 2, techniques)) by_name[compared.name] = compared;
  ASSERT_EQ(by_name.size(), 10u);
  EXPECT_EQ(by_name["zero3"].recipe.data_parallel, "zero3");
  EXPECT_EQ(by_name["zero3"].ranks, 2);
  EXPECT_EQ(by_name["bf16_gradients"].recipe.gradient_compression, "bf16");
  EXPECT_TRUE(by_name["bf16_gradients"].lossy);
  EXPECT_THAT(by_name["replicas"].obstacle, HasSubstr("compile"));
  EXPECT_THAT(by_name["reproducible_ranks"].obstacle, HasSubstr("compile"));
  for (ComparedRecipe& compared : parallel_recipes(Recipe(), 3, techniques)) by_name[compared.name] = compared;
  EXPECT_THAT(by_name["reproducible_ranks"].obstacle, HasSubstr("power of two, got 3"));
  EXPECT_EQ(by_name["replicas"].obstacle, "");
  EXPECT_EQ(by_name["replicas"].ranks, 1);
  EXPECT_EQ(by_name["replicas"].recipe.replicas, 3);
}

TEST(ParallelTechniques, DivideModelsThatHaveAPlan) {
  Registry<ParallelTechnique> techniques("technique");
  register_parallel_techniques(techniques);
  const auto tensor = [&](const Recipe& changed, int ranks) {
    for (const ComparedRecipe& compared : parallel_recipes(changed, ranks, techniques)) {
      if (compared.name == "tensor") return compared;
    }
    return ComparedRecipe{};
  };
  Recipe recipe;
  EXPECT_THAT(tensor(recipe, 2).obstacle, HasSubstr("no automatic plan divides the layers of digits_resnet"));
  recipe.tensor_plan = "*.conv: column";
  EXPECT_EQ(tensor(recipe, 2).obstacle, "") << "the plan of the recipe";
  EXPECT_EQ(tensor(recipe, 2).recipe.tensor_plan, "*.conv: column");
  recipe.tensor_plan = "auto";
  recipe.model = "bert-20m";
  EXPECT_EQ(tensor(recipe, 2).obstacle, "");
  EXPECT_EQ(tensor(recipe, 2).recipe.mesh, "tensor: 2");
  EXPECT_THAT(tensor(recipe, 4).obstacle,
              HasSubstr("4 ranks do not divide both the 6 attention heads and the inner width"));
  recipe.quantize = "int8";
  EXPECT_THAT(tensor(recipe, 2).obstacle, HasSubstr("quantize"));
}

TEST(ParallelTechniques, DivideTransformersIntoStages) {
  Registry<ParallelTechnique> techniques("technique");
  register_parallel_techniques(techniques);
  const auto pipeline = [&](const Recipe& changed, int ranks) {
    for (const ComparedRecipe& compared : parallel_recipes(changed, ranks, techniques)) {
      if (compared.name == "pipeline") return compared;
    }
    return ComparedRecipe{};
  };
  Recipe recipe;
  EXPECT_THAT(pipeline(recipe, 2).obstacle, HasSubstr("the model digits_resnet cannot be divided into stages"));
  recipe.model = "bert-20m";
  EXPECT_EQ(pipeline(recipe, 2).obstacle, "");
  EXPECT_EQ(pipeline(recipe, 2).recipe.mesh, "pipeline: 2");
  EXPECT_THAT(pipeline(recipe, 64).obstacle, HasSubstr("which are fewer than 64 ranks"));
  recipe.mesh = "pipeline: 2";
  recipe.pipeline_schedule = "zero_bubble";
  EXPECT_EQ(pipeline(recipe, 2).recipe.pipeline_schedule, "zero_bubble");
  for (const ComparedRecipe& compared : parallel_recipes(recipe, 2, techniques)) {
    const bool own = compared.name == "pipeline" || !compared.obstacle.empty();
    EXPECT_EQ(compared.recipe.pipeline_schedule == "zero_bubble", own) << compared.name;
  }
}

TEST(ParallelTechniques, DivideSequencesOfTransformers) {
  Registry<ParallelTechnique> techniques("technique");
  register_parallel_techniques(techniques);
  const auto context = [&](const Recipe& changed, int ranks) {
    for (const ComparedRecipe& compared : parallel_recipes(changed, ranks, techniques)) {
      if (compared.name == "context") return compared;
    }
    return ComparedRecipe{};
  };
  Recipe recipe;
  EXPECT_THAT(context(recipe, 2).obstacle, HasSubstr("the model digits_resnet cannot divide its sequences"));
  recipe.model = "bert-20m";
  recipe.max_length = 64;
  EXPECT_EQ(context(recipe, 2).obstacle, "");
  EXPECT_EQ(context(recipe, 2).recipe.mesh, "context: 2");
  EXPECT_THAT(context(recipe, 3).obstacle, HasSubstr("max_length = 64 is not a multiple of 6"));
  models::ModelEntry gpt = models::registry().at("gpt2");
  gpt.name = "gpt_of_any_length";
  gpt.input_shape[1] = 0;
  models::register_model(gpt);
  Recipe any_length;
  any_length.model = gpt.name;
  EXPECT_EQ(context(any_length, 2).obstacle, "");
  EXPECT_THAT(context(any_length, 3).obstacle, HasSubstr("the default max_length of 128 is not a multiple of 6"));
  recipe.mesh = "tensor: 2";
  recipe.sequence_parallel = true;
  EXPECT_FALSE(context(recipe, 2).recipe.sequence_parallel);
  recipe = Recipe();
  recipe.model = "bert-20m";
  recipe.mesh = "context: 2";
  recipe.context_method = "gather";
  EXPECT_EQ(context(recipe, 2).recipe.context_method, "gather");
  for (const ComparedRecipe& compared : parallel_recipes(recipe, 2, techniques))
    EXPECT_EQ(compared.recipe.context_method == "gather", compared.name == "context" || !compared.obstacle.empty())
        << compared.name;
}

}  // namespace bellows::train
