// Context parallelism in recipes: ranks that divide the sequences of a model train like one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/rand.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/train/parallel/divided_ranks.h"

namespace bellows::train::divided_ranks {

namespace {

using parallel::testing::run_processes;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t tokens = 8;  // two chunks for each of four ranks

/// Compares losses only, because AdamW normalizes gradients that consist of rounding errors, such as those of key biases.
void expect_losses_near(const MakeJob& make, const Recipe& divided, const comm::Group& group, double distance) {
  Recipe alone = divided;
  alone.mesh.clear();
  constexpr int64_t steps = 8;
  const Outcome got = outcome_of(make, divided, &group, steps), expected = outcome_of(make, alone, nullptr, steps);
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i)
    EXPECT_NEAR(got.losses[i], expected.losses[i], distance * expected.losses[i]) << "step " << i;
  EXPECT_NEAR(got.evaluation.loss, expected.evaluation.loss, distance * expected.evaluation.loss);
}

/// Each rank's next random number, and the sum of its weights.
std::vector<at::Tensor> random_numbers_and_sums(const TrainLoop& loop, const World& world) {
  const at::Tensor number = at::rand({1}, at::kDouble);
  at::Tensor sum = at::zeros({1}, at::kDouble);
  for (const at::Tensor& parameter : loop.job().model.parameters()) sum += parameter.detach().sum();
  return {comm::all_gather(number, world).flatten(), comm::all_gather(sum, world).flatten()};
}

}  // namespace

TEST(ContextRanks, GiveWhatOneProcessGives) {
  run_processes(4, [](const World& world, const std::string&) {
    ComparedJob dropping(language_job(0.2, tokens)), language(language_job(0, tokens)), classes(classifier_job(tokens));
    ComparedJob& of_pair = world.rank() < 2 ? dropping : classes;
    of_pair.expect_alike_on(pair_of(world), divided_recipe("context: 2"));
    dropping.expect_alike_on(world, divided_recipe("context: 4"));
    language.expect_alike_on(world, divided_recipe("data: 2, context: 2"));
    classes.expect_alike_on(world, divided_recipe("data: 2, context: 2"));
  });
}

TEST(ContextRanks, WithOtherKeys) {
  run_processes(2, [](const World& world, const std::string&) {
    ComparedJob dropping(language_job(0.2, tokens));
    for (const char* method : {"all_to_all", "gather"}) {
      Recipe recipe = divided_recipe("context: 2");
      recipe.context_method = method;
      dropping.expect_alike_on(world, recipe);
    }
    Recipe recipe = divided_recipe("context: 2");
    recipe.recompute = "blocks";
    dropping.expect_alike_on(world, recipe);
    recipe = divided_recipe("context: 2");
    recipe.ema_decay = 0.9;
    recipe.on_nan = "skip";
    recipe.gradient_accumulation_steps = 1;
    ComparedJob(language_job(0, tokens)).expect_alike_on(world, recipe);
  });
}

TEST(ContextRanks, WithTensorParallelism) {
  run_processes(4, [](const World& world, const std::string&) {
    Recipe recipe = divided_recipe("context: 2, tensor: 2");
    ComparedJob dropping(language_job(0.2, tokens)), classes(classifier_job(tokens));
    classes.expect_alike_on(world, recipe);
    recipe.recompute = "blocks";
    dropping.expect_alike_on(world, recipe);
    recipe.recompute = "none";
    recipe.context_method = "all_to_all";
    dropping.expect_alike_on(world, recipe);
  });
}

// The ranks of the tensor axis divide each rank's part of a sequence again.
TEST(ContextRanks, WithSequenceParallelism) {
  run_processes(4, [](const World& world, const std::string&) {
    ComparedJob dropping(language_job(0.2, tokens)), classes(classifier_job(tokens));
    for (const char* method : {"ring", "all_to_all", "gather"}) {
      Recipe recipe = divided_recipe("context: 2, tensor: 2");
      recipe.sequence_parallel = true;
      recipe.context_method = method;
      dropping.expect_alike_on(world, recipe);
      if (method == std::string("ring")) classes.expect_alike_on(world, recipe);
    }
    Recipe recipe = divided_recipe("context: 2, tensor: 2");
    recipe.data_parallel = "zero3";
    recipe.sequence_parallel = true;
    recipe.ema_decay = 0.9;
    dropping.expect_alike_on(world, recipe);
  });
}

TEST(ContextRanks, InStages) {
  run_processes(4, [](const World& world, const std::string&) {
    Recipe recipe = divided_recipe("pipeline: 2, context: 2");
    ComparedJob language(language_job(0, tokens)), classes(classifier_job(tokens));
    classes.expect_alike_on(world, recipe);
    recipe.recompute = "blocks";
    recipe.ema_decay = 0.9;
    language.expect_alike_on(world, recipe);
    recipe.recompute = "none";
    recipe.pipeline_schedule = "zero_bubble";
    recipe.context_method = "gather";
    language.expect_alike_on(world, recipe);
  });
}

TEST(ContextRanks, StagesDrawTheMasksOfAPipeline) {
  run_processes(4, [](const World& world, const std::string&) {
    const comm::Group pair = pair_of(world), all = world;
    Recipe recipe = divided_recipe("pipeline: 2");
    recipe.micro_batches = 3;
    const Outcome complete = outcome_of(language_job(0.2, tokens), recipe, &pair, 6);
    recipe.mesh = "pipeline: 2, context: 2";
    expect_alike(outcome_of(language_job(0.2, tokens), recipe, &all, 6), complete);
  });
}

// The last batch of an epoch has one text, so the second replica has none.
TEST(ContextRanks, OnThreeAxes) {
  for (const char* mesh :
       {"data: 2, context: 2, tensor: 2", "data: 2, pipeline: 2, context: 2", "pipeline: 2, context: 2, tensor: 2"})
    expect_threads_train_alike(language_job(0, tokens), divided_recipe(mesh), 8, 4);
}

TEST(ContextRanks, InLowerPrecision) {
  run_processes(2, [](const World& world, const std::string&) {
    Recipe recipe = divided_recipe("context: 2");
    expect_losses_near(in_single_precision(language_job(0.1, tokens)), recipe, world, 1e-3);
    const MakeJob make = in_single_precision(language_job(0, tokens));
    recipe.recompute = "blocks";
    recipe.precision = "bf16";
    expect_losses_near(make, recipe, world, 0.05);
    recipe = divided_recipe("context: 2");
    recipe.gradient_compression = "bf16";
    expect_losses_near(make, recipe, world, 0.05);
  });
}

TEST(ContextRanks, AgreeOnTheScaleOfTheLoss) {
  run_processes(2, [](const World& world, const std::string&) {
    expect_agreement_on_the_loss_scale(language_job(0, tokens), "context: 2", world);
  });
}

TEST(ContextRanks, DrawTheSameMasksOnlyForTheSameSamples) {
  run_processes(4, [](const World& world, const std::string&) {
    Job job = language_job(0.2, tokens)(divided_recipe("data: 2, context: 2"));
    job.ranks = world.group();
    TrainLoop loop(std::move(job));
    loop.run_steps(2);
    const std::vector<at::Tensor> all = random_numbers_and_sums(loop, world);
    const auto* const numbers = all[0].const_data_ptr<double>();
    EXPECT_EQ(numbers[0], numbers[1]);
    EXPECT_EQ(numbers[2], numbers[3]);
    EXPECT_NE(numbers[0], numbers[2]);
    EXPECT_TRUE(all[1].eq(all[1][0]).all().item<bool>()) << "all ranks have the same weights";
    EXPECT_EQ(loop.ranks().ranks_with_other_weights(), std::vector<int>());
    EXPECT_THAT(loop.ranks().describe(),
                AllOf(HasSubstr("mesh data 2 × context 2"), HasSubstr("context parallelism: 2 ranks, ring")));
  });
}

TEST(ContextRanks, ARunMovesToOtherMeshesInTheMiddleOfEpochs) {
  run_processes(4, [](const World& world, const std::string& folder) {
    expect_run_moves(language_job(0, tokens),
                     // Several ranks stop one step after the request.
                     {{2, "", 1},  // DDP
                      {2, "context: 2", 3},
                      {4, "data: 2, context: 2", 5},
                      {4, "context: 2, tensor: 2", 7},
                      {4, "pipeline: 2, context: 2", 9},
                      {2, "", 0}},
                     world, folder + "/mesh");
    // With dropout: ranks that read the same samples draw the masks of one process.
    expect_run_moves(language_job(0.2, tokens), {{1, "", 2}, {2, "context: 2", 4}, {4, "context: 4", 7}, {1, "", 0}},
                     world, folder + "/dropout");
  });
}

TEST(ContextRanks, RecipesAreReadAndChecked) {
  const Recipe recipe = Recipe::parse("mesh: {context: 2, data: 3}\ncontext_method: all_to_all\n");
  EXPECT_THAT(recipe.to_yaml(), HasSubstr("mesh: {data: 3, context: 2}\n"));
  EXPECT_THAT(recipe.to_yaml(), HasSubstr("context_method: all_to_all\n"));
  EXPECT_EQ(Recipe::parse(recipe.to_yaml()).to_yaml(), recipe.to_yaml());
  EXPECT_THAT(Recipe().to_yaml(), HasSubstr("context_method: ring\n"));
  const auto message = [](const std::string& text) { return error_of([&] { Recipe::parse(text); }); };
  const auto with_mesh = [&](const std::string& text) { return message("mesh: {context: 2}\n" + text); };
  EXPECT_THAT(message("context_method: gather"), HasSubstr("context_method = gather works only with an axis context"));
  EXPECT_THAT(message("mesh: {context: 1}"),
              HasSubstr("or with an axis pipeline, context or tensor of at least 2, got ddp"));
  EXPECT_THAT(with_mesh("context_method: rings"), HasSubstr("ring"));
  EXPECT_EQ(message("mesh: {context: 2, tensor: 2}\nsequence_parallel: true"), "");
  EXPECT_THAT(message("mesh: {context: 2, tensor: 2}\nsequence_parallel: true\nrecompute: blocks"),
              HasSubstr("sequence_parallel does not work with recompute = blocks"));
  for (const char* stage : {"zero1", "zero2", "zero3"}) {
    EXPECT_EQ(message(c10::str("mesh: {data: 2, context: 2, tensor: 2}\ndata_parallel: ", stage)), "");
    EXPECT_EQ(message(c10::str("mesh: {pipeline: 2, context: 2}\ndata_parallel: ", stage)), "");
  }
  EXPECT_THAT(message("mesh: {context: 2, shard: 2}"), HasSubstr("the axis shard belongs to ZeRO"));
  EXPECT_EQ(message("mesh: {context: 2, shard: 2}\ndata_parallel: zero2"), "");
  EXPECT_THAT(Recipe::parse("mesh: {tensor: 2, context: 2, pipeline: 2}").to_yaml(),
              HasSubstr("mesh: {data: 1, pipeline: 2, context: 2, tensor: 2}\n"));
  EXPECT_THAT(with_mesh("data_parallel: dp"), HasSubstr("but data_parallel = dp trains in one process"));
  EXPECT_EQ(with_mesh("data_parallel: zero1"), "");
  EXPECT_EQ(with_mesh("compile: step"), "");
  EXPECT_THAT(with_mesh("reproducible_ranks: 2"), HasSubstr("reproducible_ranks = 2"));
  EXPECT_THAT(with_mesh("activation_dtype: int8"), HasSubstr("activation_dtype = int8 rounds at random"));
  EXPECT_THAT(with_mesh("recompute: blocks\nactivation_memory_budget: 0.5"), HasSubstr("repeat different exchanges"));
  EXPECT_EQ(with_mesh("recompute: blocks"), "");
}

TEST(ContextRanks, JobsThatCannotBeDividedAreRefused) {
  const auto error_with = [](const std::string& mesh, const MakeJob& make) {
    const Recipe recipe = divided_recipe(mesh);
    return error_on_two_ranks(make, {recipe, recipe});
  };
  EXPECT_THAT(error_with("context: 2", ranks_job), HasSubstr("the model \"net\" cannot divide its sequences"));
  const MakeJob series = [](const Recipe& recipe) {
    const Model model = small::with_weights(small::series_task().make(0, false));
    return job_of(recipe, model, cross_entropy_loss(model), ranks_job(recipe).train, Task{});
  };
  EXPECT_THAT(error_with("context: 2", series), HasSubstr("gpt, bert and distilbert support it"));
  EXPECT_THAT(error_with("data: 2, context: 2", language_job(0, tokens)), HasSubstr("data 2 × context 2"));
  EXPECT_THAT(error_with("context: 2", language_job(0, 6)),
              HasSubstr("6 tokens, but 2 ranks in zig-zag order need a multiple of 4"));
  EXPECT_THAT(error_with("context: 2", language_job(0, 2)), HasSubstr("need a multiple of 4"));
  EXPECT_EQ(error_with("context: 2", language_job(0, tokens)), "");
  // Each rank of the context axis has two tokens, which the ranks of the tensor axis divide again.
  const auto error_with_tensor_ranks = [](int ranks) {
    Recipe recipe = divided_recipe(c10::str("context: 2, tensor: ", ranks));
    recipe.sequence_parallel = true;
    return error_of_jobs(jobs_for(2 * ranks, recipe, language_job(0, 4)), 1);
  };
  EXPECT_EQ(error_with_tensor_ranks(2), "");
  EXPECT_THAT(error_with_tensor_ranks(4), HasSubstr("has 2 elements, which the 4 ranks of"));
}

TEST(ContextRanks, ALossThatIsNotFiniteEndsTheRunOnAllRanks) {
  const MakeJob make = [](const Recipe& recipe) {
    Job job = language_job(0, tokens)(recipe);
    job.model.parameters().front().detach().fill_(std::numeric_limits<double>::quiet_NaN());
    return job;
  };
  const Recipe recipe = divided_recipe("context: 2");
  EXPECT_THAT(error_on_two_ranks(make, {recipe, recipe}),
              AllOf(HasSubstr("the loss became NaN at step 1"),
                    HasSubstr("On rank 0: \"transformer.wte.weight\" of the model already contains it")));
}

TEST(ContextRanks, RanksThatDifferAreNamed) {
  const Recipe recipe = divided_recipe("context: 2");
  Recipe other = recipe;
  other.context_method = "gather";
  EXPECT_THAT(error_on_two_ranks(language_job(0, tokens), {recipe, other}),
              HasSubstr("is context_method: gather on rank 1"));
}

TEST(ContextRanks, TheBatchMayBeSetForRanksWithOtherSamples) {
  Recipe recipe = divided_recipe("context: 2");
  recipe.batch_size_per_rank = 3;
  EXPECT_THAT(error_on_two_ranks(language_job(0, tokens), {recipe, recipe}),
              HasSubstr("batch_size_per_rank = 3 needs batches of 3 samples with 1 rank"));
  recipe.batch_size = 3;
  EXPECT_EQ(error_on_two_ranks(language_job(0, tokens), {recipe, recipe}), "");
}

}  // namespace bellows::train::divided_ranks
