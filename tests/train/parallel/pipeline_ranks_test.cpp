// Pipeline parallelism in recipes: ranks that divide a model into stages train like one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "bellows/parallel/pipeline/schedule.h"
#include "bellows/train/recipe/pipeline_keys.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/recipe/recipe_error.h"
#include "bellows/train/run/rank_changes.h"
#include "bellows/train/step/pipeline_ranks.h"
#include "tests/train/parallel/divided_ranks.h"

namespace bellows::train::divided_ranks {

namespace {

using parallel::testing::run_processes;
using ::testing::HasSubstr;

Recipe with_schedule(const std::string& mesh, const std::string& schedule) {
  Recipe recipe = divided_recipe(mesh);
  recipe.pipeline_schedule = schedule;
  recipe.pipeline_stages = schedule == "interleaved" ? 2 : 1;
  return recipe;
}

/// Also measures a metric besides the accuracy.
Job measured_job(const Recipe& recipe) {
  Job job = classifier_job()(recipe);
  job.task.outputs = 3;
  job.task.metrics = {"f1"};
  return job;
}

}  // namespace

TEST(PipelineRanks, GiveWhatOneProcessGives) {
  run_processes(4, [](const World& world, const std::string&) {
    ComparedJob language(language_job(0)), classes(classifier_job());
    ComparedJob& of_pair = world.rank() < 2 ? language : classes;
    of_pair.expect_alike_on(pair_of(world), divided_recipe("pipeline: 2"));
    language.expect_alike_on(world, divided_recipe("pipeline: 4"));
    for (ComparedJob* job : {&language, &classes}) {
      // The last batch of an epoch has one text, so the second pipeline has none.
      job->expect_alike_on(world, divided_recipe("data: 2, pipeline: 2"));
      job->expect_alike_on(world, divided_recipe("pipeline: 2, tensor: 2"));
    }
  });
}

// The last batch of an epoch has one text, so the second pipeline has none.
TEST(PipelineRanks, OnThreeAxes) {
  expect_threads_train_alike(language_job(0), divided_recipe("data: 2, pipeline: 2, tensor: 2"), 8, 6);
}

TEST(PipelineRanks, WithEachSchedule) {
  run_processes(2, [](const World& world, const std::string& folder) {
    ComparedJob language(language_job(0));
    for (const char* schedule : {"gpipe", "interleaved", "zero_bubble"})
      language.expect_alike_on(world, with_schedule("pipeline: 2", schedule));
    const std::string path = folder + "/own.schedule";
    if (world.rank() == 0) parallel::write_schedule(parallel::gpipe(2, 3), path);
    comm::barrier(world);
    language.expect_alike_on(world, with_schedule("pipeline: 2", path));
    Recipe recipe = divided_recipe("pipeline: 2");
    recipe.micro_batches = 1;
    language.expect_alike_on(world, recipe);
  });
}

TEST(PipelineRanks, WithOtherKeys) {
  run_processes(2, [](const World& world, const std::string&) {
    ComparedJob language(language_job(0));
    Recipe recipe = divided_recipe("pipeline: 2");
    recipe.recompute = "blocks";
    language.expect_alike_on(world, recipe);
    recipe = divided_recipe("pipeline: 2");
    recipe.ema_decay = 0.9;
    recipe.on_nan = "skip";
    language.expect_alike_on(world, recipe);
    recipe = divided_recipe("pipeline: 2");
    recipe.max_grad_norm = 0;
    recipe.max_grad_value = 0.01;
    recipe.gradient_accumulation_steps = 1;
    ComparedJob(classifier_job()).expect_alike_on(world, recipe);
  });
}

TEST(PipelineRanks, AllRanksGetTheMetricsOfTheLastStage) {
  run_processes(4, [](const World& world, const std::string&) {
    const Outcome alone = outcome_of(measured_job, divided_recipe(), nullptr, 3);
    for (const char* mesh : {"data: 2, pipeline: 2", "pipeline: 2, tensor: 2"}) {
      const comm::Group ranks = world;
      const Outcome outcome = outcome_of(measured_job, divided_recipe(mesh), &ranks, 3);
      expect_alike(outcome, alone);
      ASSERT_EQ(outcome.evaluation.metrics.size(), 1u);
      EXPECT_EQ(outcome.evaluation.metrics[0].first, "f1");
      EXPECT_NEAR(outcome.evaluation.metrics[0].second, alone.evaluation.metrics[0].second, 1e-12);
    }
  });
}

// Masks differ from those of one process, but not between divisions.
TEST(PipelineRanks, MasksDoNotDependOnTheNumberOfStages) {
  run_processes(4, [](const World& world, const std::string&) {
    const comm::Group pair = pair_of(world), all = world;
    Recipe recipe = divided_recipe("pipeline: 2");
    recipe.micro_batches = 3;
    const Outcome two = outcome_of(language_job(0.2), recipe, &pair);
    recipe.mesh = "pipeline: 4";
    expect_alike(outcome_of(language_job(0.2), recipe, &all), two);
    recipe.mesh = "pipeline: 2, tensor: 2";
    expect_alike(outcome_of(language_job(0.2), recipe, &all), two);
    EXPECT_NE(two.losses.back(), outcome_of(language_job(0), recipe, &all).losses.back());
  });
}

TEST(PipelineRanks, ComputeStagesInLowPrecision) {
  run_processes(2, [](const World& world, const std::string&) {
    Recipe recipe = divided_recipe("pipeline: 2");
    const MakeJob make = in_single_precision(language_job(0));
    const Outcome full = outcome_of(make, recipe, &world.group());
    recipe.precision = "bf16";
    const Outcome bf16 = outcome_of(make, recipe, &world.group());
    EXPECT_NE(bf16.losses.front(), full.losses.front());
    EXPECT_NEAR(bf16.losses.front(), full.losses.front(), 0.02 * full.losses.front());
    expect_agreement_on_the_loss_scale(language_job(0), "pipeline: 2", world);
  });
}

TEST(PipelineRanks, HoldOnlyTheirStages) {
  run_processes(2, [](const World& world, const std::string&) {
    const Recipe recipe = divided_recipe("pipeline: 2");
    Job job = language_job(0)(recipe);
    const std::vector<at::Tensor> whole = copies_of(job.model);
    job.ranks = world.group();
    TrainLoop loop(std::move(job));
    const std::vector<at::Tensor> parameters = loop.job().model.parameters();
    size_t freed = 0;
    for (const at::Tensor& parameter : parameters) freed += parameter.numel() == 0 ? 1 : 0;
    const size_t listed = parameters_of(loop.job().optimizers).size();
    EXPECT_GT(freed, 0u);
    EXPECT_EQ(listed, parameters.size() - freed);
    EXPECT_EQ(loop.ranks().local_model().named_parameters().size(), listed);
    EXPECT_THAT(loop.ranks().describe(), HasSubstr("pipeline parallelism: 2 stages on 2 ranks, 1f1b with 6"));
    loop.ranks().complete_parameters();
    expect_same_bits(copies_of(loop.job().model), whole);
  });
}

TEST(PipelineRanks, ARunMovesToOtherMeshesInTheMiddleOfEpochs) {
  run_processes(4, [](const World& world, const std::string& folder) {
    expect_run_moves(language_job(0),
                     {{1, "", 2},
                      {2, "pipeline: 2", 4},
                      {4, "data: 2, pipeline: 2", 6},
                      {2, "", 8},  // DDP
                      {4, "pipeline: 2, tensor: 2", 10},
                      {1, "", 0}},
                     world, folder + "/mesh");
    expect_run_moves(language_job(0), {{1, "", 4}, {2, "pipeline: 2", 7}, {4, "pipeline: 4", 0}}, world,
                     folder + "/stages");
  });
}

TEST(PipelineRanks, AResumedRunDrawsTheSameMasks) {
  run_processes(2, [](const World& world, const std::string& folder) {
    Recipe recipe = divided_recipe("pipeline: 2");
    recipe.epochs = 2;
    const comm::Group ranks = world;
    std::vector<at::Tensor> whole, resumed;
    fit_job(language_job(0.2), recipe, &ranks, 0, false, whole);
    recipe.run_folder = folder + "/run";
    fit_job(language_job(0.2), recipe, &ranks, 2, false, resumed);
    fit_job(language_job(0.2), recipe, &ranks, 0, true, resumed);
    expect_same_bits(resumed, whole);
  });
}

TEST(PipelineRanks, RecipesAreReadAndChecked) {
  const Recipe recipe = Recipe::parse(
      "mesh: {tensor: 2, pipeline: 4, data: 3}\npipeline_schedule: interleaved\npipeline_stages: 2\nmicro_batches: "
      "8\n");
  EXPECT_THAT(recipe.to_yaml(), HasSubstr("mesh: {data: 3, pipeline: 4, tensor: 2}\n"));
  EXPECT_EQ(Recipe::parse(recipe.to_yaml()).to_yaml(), recipe.to_yaml());
  EXPECT_EQ(with_total_batch(Recipe::parse("mesh: {pipeline: 2}\nbatch_size_per_rank: 4\n"), 6).batch_size, 12);
  const auto message = [](const std::string& text) { return error_of([&] { Recipe::parse(text); }); };
  const auto with_mesh = [&](const std::string& text) { return message("mesh: {pipeline: 2}\n" + text); };
  EXPECT_EQ(with_mesh("recompute: blocks\nprecision: fp16\nmax_grad_norm: 1\npipeline_schedule: own/table.txt"), "");
  EXPECT_EQ(with_mesh("compile: step\npipeline_schedule: zero_bubble"), "");
  EXPECT_THAT(message("micro_batches: 2"), HasSubstr("micro_batches works only with an axis pipeline in mesh"));
  EXPECT_THAT(message("pipeline_schedule: gpipe"), HasSubstr("pipeline_schedule works only with an axis pipeline"));
  EXPECT_THAT(message("mesh: {pipeline: 1}"),
              HasSubstr("or with an axis pipeline, context or tensor of at least 2, got ddp"));
  EXPECT_THAT(with_mesh("pipeline_schedule: gpip"), HasSubstr("Did you mean \"gpipe\"?"));
  EXPECT_THAT(with_mesh("pipeline_stages: 2"), HasSubstr("the schedule interleaved needs at least 2 stages per rank"));
  EXPECT_THAT(with_mesh("pipeline_schedule: interleaved"), HasSubstr("needs at least 2 stages per rank"));
  EXPECT_THAT(with_mesh("pipeline_schedule: interleaved\npipeline_stages: 2\nmicro_batches: 3"),
              HasSubstr("micro_batches = 3 must be a multiple of the 2 ranks"));
  EXPECT_THAT(with_mesh("data_parallel: zero1"), HasSubstr("the mesh has no axis data or shard of at least 2"));
  for (const char* stage : {"zero1", "zero2", "zero3"}) {
    EXPECT_EQ(message(c10::str("mesh: {data: 2, pipeline: 2}\ndata_parallel: ", stage)), "");
    EXPECT_EQ(message(c10::str("mesh: {data: 2, shard: 2, pipeline: 2}\ndata_parallel: ", stage)), "");
  }
  EXPECT_THAT(message("mesh: {shard: 2, pipeline: 2}"), HasSubstr("the axis shard belongs to ZeRO"));
  for (const char* refused :
       {"data_parallel: dp", "compile: step\nmemory_budget: 0.5", "optimizer_state: int8",
        "optimizer_in_backward: true", "gradient_accumulation_dtype: fp32", "gradient_compression: bf16",
        "reproducible_ranks: 2", "sync_batch_norm: true", "teacher: digits_resnet", "quantize: int8",
        "fast_random: true", "batch_size_start: 8\ngrowth_epochs: 1", "activation_dtype: int8", "offload_folder: /tmp",
        "sample_stats: true", "recompute: blocks\nactivation_memory_budget: 0.5", "precision: bf16\namp_level: O2"}) {
    const std::string text = refused;
    const std::string last = text.substr(text.rfind('\n') + 1);
    EXPECT_THAT(with_mesh(text), HasSubstr("uses pipeline parallelism, but ")) << last;
  }
  EXPECT_THAT(message("mesh: {pipeline: 2, tensor: 2}\nsequence_parallel: true"),
              HasSubstr("sequence_parallel = true runs the blocks of the complete model"));
  EXPECT_THAT(error_of([&] { check_replaceable_ranks(Recipe::parse("mesh: {pipeline: 2}"), 2); }),
              HasSubstr("mesh must not have an axis tensor or pipeline"));
}

TEST(PipelineRanks, SchedulesFollowFromTheKeys) {
  const auto count = [](const std::string& text) { return pipeline_schedule(Recipe::parse(text)).micro_batches; };
  EXPECT_EQ(count("mesh: {pipeline: 2}"), 8);
  EXPECT_EQ(count("mesh: {pipeline: 4, data: 4}\nbatch_size: 32"), 8);
  EXPECT_EQ(count("mesh: {pipeline: 4, data: 2, shard: 2}\ndata_parallel: zero3\nbatch_size: 32"), 8);
  EXPECT_EQ(count("mesh: {pipeline: 4}\nbatch_size_per_rank: 3"), 3);
  EXPECT_EQ(count("mesh: {pipeline: 4}\nbatch_size: 11\npipeline_schedule: interleaved\npipeline_stages: 2"), 8);
  EXPECT_EQ(count("mesh: {pipeline: 2}\nmicro_batches: 5"), 5);
}

TEST(PipelineRanks, JobsThatCannotBeDividedAreRefused) {
  const auto error_with = [](const std::function<void(Recipe&)>& change, const MakeJob& make = language_job(0)) {
    Recipe recipe = divided_recipe("pipeline: 2");
    change(recipe);
    return error_on_two_ranks(make, {recipe, recipe});
  };
  const auto nothing = [](Recipe&) {};
  EXPECT_THAT(error_with(nothing, points_job), HasSubstr("the model \"net\" is not a sequence of parts"));
  EXPECT_THAT(error_with([](Recipe& recipe) { recipe.mesh = "data: 2, pipeline: 2"; }),
              HasSubstr("data 2 × pipeline 2"));
  EXPECT_THAT(error_with([](Recipe& recipe) { recipe.micro_batches = 7; }),
              HasSubstr("micro_batches = 7 needs as many samples, but each pipeline has 6 per batch"));
  EXPECT_THAT(error_with([](Recipe& recipe) { recipe.pipeline_schedule = "/missing/table"; }),
              HasSubstr("/missing/table"));
  const auto interleaved = [](int64_t stages, int64_t batch) {
    return [=](Recipe& recipe) {
      recipe.pipeline_schedule = "interleaved";
      recipe.pipeline_stages = stages;
      recipe.batch_size = batch;
    };
  };
  EXPECT_THAT(error_with(interleaved(3, 6)), HasSubstr("cannot divide 4 parts into 6 stages. The parts of"));
  EXPECT_THAT(error_with(interleaved(2, 1)), HasSubstr("which is too few for pipeline_schedule = interleaved"));
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/table";
  parallel::write_schedule(parallel::gpipe(2, 4), path);
  EXPECT_THAT(error_with([&](Recipe& recipe) {
                recipe.pipeline_schedule = path;
                recipe.micro_batches = 2;
              }),
              HasSubstr("is a schedule for 4 micro-batches, but micro_batches = 2"));
  parallel::write_schedule(parallel::gpipe(4, 4), path);
  EXPECT_THAT(error_with([&](Recipe& recipe) { recipe.pipeline_schedule = path; }),
              HasSubstr("is a schedule for 4 ranks, but mesh = pipeline: 2 has 2"));
}

// The command exits with code 2 for these errors, as for other usage errors.
TEST(PipelineRanks, KeysThatDoNotFitAreRecipeErrors) {
  Recipe recipe = divided_recipe("pipeline: 2");
  recipe.micro_batches = 7;
  EXPECT_THROW(pipeline_schedule(recipe), RecipeError);
  recipe = divided_recipe("pipeline: 2");
  const TemporaryFolder folder;
  recipe.pipeline_schedule = folder.path() + "/table";
  parallel::write_schedule(parallel::gpipe(4, 4), recipe.pipeline_schedule);
  EXPECT_THROW(pipeline_schedule(recipe), RecipeError);
  EXPECT_THROW(PipelineRanks::check(language_job(0)(divided_recipe("pipeline: 6"))), RecipeError);
}

TEST(PipelineRanks, JobsNeedALossOfOutputsAndParametersOfAllStages) {
  const Recipe recipe = divided_recipe("pipeline: 2");
  const auto error_with = [&](const std::function<void(Job&)>& change) {
    const MakeJob make = [&](const Recipe& of) {
      Job job = language_job(0)(of);
      change(job);
      return job;
    };
    return error_on_two_ranks(make, {recipe, recipe});
  };
  EXPECT_THAT(error_with([](Job& job) { job.output_loss = {}; }), HasSubstr("set Job::output_loss"));
  EXPECT_THAT(
      error_with([](Job& job) {
        job.loss(data::Batch({{"tokens", at::ones({2, 6}, at::kLong)}, {"segment_ids", at::ones({2, 6}, at::kLong)}},
                             {}, {}))
            .loss.backward();
        job.optimizers.front()->step();
      }),
      HasSubstr("already has state for complete ones"));
  EXPECT_THAT(error_with([](Job& job) {
                job.optimizers.front() = std::make_shared<optim::AdamW>(
                    std::vector<at::Tensor>{job.model.parameters().back()}, optim::AdamWOptions{});
              }),
              HasSubstr("an optimizer has no parameter of the stages of rank 0"));
  EXPECT_THAT(error_with([](Job& job) {
                const at::NoGradGuard no_grad;
                at::Tensor(job.model.parameters().back()).fill_(std::numeric_limits<double>::quiet_NaN());
              }),
              HasSubstr("the loss became NaN at step 1"));
}

TEST(PipelineRanks, RanksThatDifferAreNamed) {
  Recipe recipe = divided_recipe("pipeline: 2"), other = recipe;
  other.micro_batches = 2;
  EXPECT_THAT(error_on_two_ranks(language_job(0), {recipe, other}), HasSubstr("is micro_batches: 2 on rank 1"));
}

}  // namespace bellows::train::divided_ranks
