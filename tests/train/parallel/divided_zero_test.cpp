// ZeRO in recipes whose ranks divide layers, sequences or the model: they train like one process.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/train/parallel/divided_ranks.h"

namespace bellows::train::divided_ranks {

namespace {

using parallel::testing::run_processes;

constexpr int64_t zero_tokens = 8;  // two chunks for each of four ranks

Recipe zero_recipe(const std::string& strategy, const std::string& mesh) {
  Recipe recipe = divided_recipe(mesh);
  recipe.data_parallel = strategy;
  if (strategy != "zero1") recipe.shard_units = "transformer.h.*";  // one bucket for each layer, and one for the rest
  return recipe;
}

/// Elements of a checkpoint's parts, by the kind of tensor.
struct HeldElements {
  int64_t model = 0, state = 0;
};

int64_t elements_of(const checkpoint::Parts& parts) {
  int64_t count = 0;
  for (const comm::Shard& part : parts) {
    EXPECT_EQ(part.local.numel(), part.spec.numel()) << part.name;
    EXPECT_TRUE(part.spec.is_inside()) << part.name;
    count += part.local.numel();
  }
  return count;
}

/// The elements that each of four ranks holds after a step.
std::vector<HeldElements> held_elements(const std::string& strategy, const std::string& mesh) {
  Recipe recipe = divided_recipe(mesh);
  recipe.data_parallel = strategy;
  if (mesh.find("tensor") != std::string::npos) recipe.tensor_plan = "0: column, 2: row";
  std::vector<Job> jobs = jobs_for(4, recipe, points_job);
  std::vector<HeldElements> held(jobs.size());
  run_ranks(4, [&](const comm::Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    jobs[rank].ranks = group;
    TrainLoop loop(std::move(jobs[rank]));
    loop.run_steps(1);
    const Ranks& ranks = loop.ranks();
    held[rank] = {.model = elements_of(ranks.parts_of(ranks.local_model().state_dict())),
                  .state = elements_of(ranks.parts_of(*loop.job().optimizers.front()))};
  });
  return held;
}

}  // namespace

TEST(DividedZero, RanksGiveWhatOneProcessGives) {
  run_processes(4, [](const World& world, const std::string&) {
    constexpr int64_t steps = 8;
    ComparedJob language(language_job(0, zero_tokens), steps), dropping(language_job(0.2, zero_tokens), steps);
    const auto expect_alike_with = [&](const Recipe& recipe) { language.expect_alike_on(world, recipe); };
    expect_alike_with(zero_recipe("zero2", "data: 2, tensor: 2"));
    Recipe recipe = zero_recipe("zero3", "shard: 2, tensor: 2");
    recipe.ema_decay = 0.9;
    recipe.on_nan = "skip";
    recipe.recompute = "blocks";
    expect_alike_with(recipe);
    recipe = zero_recipe("zero3", "data: 2, tensor: 2");
    recipe.sync_each_batch = false;
    recipe.sequence_parallel = true;
    expect_alike_with(recipe);
    dropping.expect_alike_on(world, zero_recipe("zero2", "context: 4"));
    expect_alike_with(zero_recipe("zero3", "shard: 2, context: 2"));
    expect_agreement_on_the_loss_scale(language_job(0), "shard: 2, tensor: 2", world, "zero3");
  });
}

TEST(DividedZero, StagesOfPipelines) {
  run_processes(4, [](const World& world, const std::string&) {
    ComparedJob language(language_job(0, zero_tokens), 8);
    for (const char* strategy : {"zero1", "zero2", "zero3"})
      language.expect_alike_on(world, zero_recipe(strategy, "data: 2, pipeline: 2"));
    Recipe recipe = zero_recipe("zero2", "shard: 2, pipeline: 2");
    recipe.pipeline_schedule = "zero_bubble";
    recipe.sync_each_batch = false;
    language.expect_alike_on(world, recipe);
    recipe = zero_recipe("zero3", "shard: 2, pipeline: 2");
    recipe.pipeline_schedule = "interleaved";
    recipe.pipeline_stages = 2;
    recipe.ema_decay = 0.9;
    recipe.on_nan = "skip";
    language.expect_alike_on(world, recipe);
    recipe = zero_recipe("zero3", "data: 2, pipeline: 2");
    recipe.recompute = "blocks";
    recipe.reshard_after_forward = false;
    language.expect_alike_on(world, recipe);
    for (const char* strategy : {"zero2", "zero3"})
      expect_agreement_on_the_loss_scale(language_job(0), "data: 2, pipeline: 2", world, strategy);
  });
}

TEST(DividedZero, SequencesOfDividedModels) {
  run_processes(4, [](const World& world, const std::string&) {
    ComparedJob language(language_job(0, zero_tokens), 8), dropping(language_job(0.2, zero_tokens), 8);
    for (const char* strategy : {"zero1", "zero2", "zero3"}) {
      dropping.expect_alike_on(world, zero_recipe(strategy, "context: 2, tensor: 2"));
      language.expect_alike_on(world, zero_recipe(strategy, "pipeline: 2, context: 2"));
    }
    expect_agreement_on_the_loss_scale(language_job(0, zero_tokens), "context: 2, tensor: 2", world, "zero1");
  });
}

TEST(DividedZero, OnThreeAndFourAxes) {
  const std::vector<std::pair<const char*, const char*>> combinations = {
      {"zero1", "data: 2, context: 2, tensor: 2"},     {"zero3", "shard: 2, context: 2, tensor: 2"},
      {"zero1", "data: 2, pipeline: 2, context: 2"},   {"zero2", "data: 2, pipeline: 2, context: 2"},
      {"zero3", "pipeline: 2, context: 2, tensor: 2"}, {"zero2", "data: 2, pipeline: 2, tensor: 2"},
      {"zero1", "data: 2, shard: 2, pipeline: 2"},     {"zero3", "data: 2, shard: 2, pipeline: 2"}};
  for (const auto& [strategy, mesh] : combinations)
    expect_threads_train_alike(language_job(0, zero_tokens), zero_recipe(strategy, mesh), 8, 4);
  Recipe recipe = zero_recipe("zero2", "data: 2, shard: 2, pipeline: 2");
  recipe.shard_state_over_all = true;
  expect_threads_train_alike(language_job(0, zero_tokens), recipe, 8, 4);
}

TEST(DividedZero, CopiesOfAShardedAndDividedModel) {
  for (const char* strategy : {"zero1", "zero2", "zero3"}) {
    SCOPED_TRACE(strategy);
    Recipe recipe = divided_recipe("data: 2, shard: 2, tensor: 2");
    recipe.tensor_plan = "0: column, 2: row";
    recipe.data_parallel = strategy;
    recipe.shard_state_over_all = strategy == std::string("zero3");
    expect_threads_train_alike(points_job, recipe, 8, 20);
  }
}

TEST(DividedZero, ARunMovesToOtherMeshesInTheMiddleOfEpochs) {
  run_processes(4, [](const World& world, const std::string& folder) {
    expect_run_moves(language_job(0, zero_tokens),
                     // Several ranks stop one step after the request.
                     {{1, "", 1},
                      {4, "data: 2, tensor: 2", 2, "zero1"},
                      {2, "context: 2", 4, "zero2"},
                      {4, "shard: 2, tensor: 2", 6, "zero3"},
                      {2, "", 8, "zero3"},
                      {4, "data: 2, pipeline: 2", 10, "zero1"},
                      {1, "", 0}},
                     world, folder + "/run");
    expect_run_moves(language_job(0, zero_tokens),
                     {{4, "data: 2, pipeline: 2", 2, "zero3"},
                      {4, "context: 2, tensor: 2", 4, "zero1"},
                      {4, "shard: 2, pipeline: 2", 6, "zero2"},
                      {4, "pipeline: 2, context: 2", 8, "zero3"},
                      {4, "pipeline: 2, tensor: 2", 10},
                      {1, "", 0}},
                     world, folder + "/stages");
  });
}

// The ranks hold each element of the state once, except for parameters that tensor parallelism does not divide.
TEST(DividedZero, RanksDivideTheStateOfTheirSlices) {
  constexpr int64_t divided = 8 * 12 + 12 + 12 * 4, complete = 4, moments = 2;
  const std::vector<HeldElements> ddp = held_elements("ddp", "data: 2, tensor: 2");
  const int64_t slice = divided / 2 + complete;
  const int64_t counters = ddp[0].state - moments * slice;  // and the options of the groups
  EXPECT_EQ(ddp[0].model, slice);
  for (const char* strategy : {"zero1", "zero2", "zero3"}) {
    SCOPED_TRACE(strategy);
    const std::vector<HeldElements> held = held_elements(strategy, "data: 2, tensor: 2");
    int64_t state = 0, model = 0;
    for (const HeldElements& rank : held) {
      EXPECT_LT(rank.state, moments * slice);
      state += rank.state;
      model += rank.model;
    }
    EXPECT_LE(state, 2 * moments * slice + 4 * counters);
    EXPECT_GE(state, 2 * moments * slice);
    EXPECT_EQ(model, strategy == std::string("zero3") ? 2 * slice : 4 * slice);
  }
}

// The two ranks with the same stages divide parameters and state. Tied weights are in two stages.
TEST(DividedZero, RanksDivideTheStateOfTheirStages) {
  const auto held_with = [](const std::string& strategy) {
    std::vector<Job> jobs = jobs_for(4, zero_recipe(strategy, "data: 2, pipeline: 2"), language_job(0, zero_tokens));
    std::vector<HeldElements> held(jobs.size());
    run_ranks(4, [&](const comm::Group& group) {
      const auto rank = static_cast<size_t>(group.rank());
      jobs[rank].ranks = group;
      TrainLoop loop(std::move(jobs[rank]));
      loop.run_steps(1);
      const Ranks& ranks = loop.ranks();
      if (strategy != "zero1") {
        for (const at::Tensor& parameter : loop.job().model.parameters()) EXPECT_FALSE(parameter.grad().defined());
      }
      held[rank] = {.model = elements_of(ranks.parts_of(ranks.local_model().state_dict())),
                    .state = elements_of(ranks.parts_of(*loop.job().optimizers.front()))};
    });
    return held;
  };
  const std::vector<HeldElements> first = held_with("zero1"), second = held_with("zero2"), third = held_with("zero3");
  for (size_t rank = 0; rank < first.size(); ++rank) {
    EXPECT_NEAR(static_cast<double>(second[rank].state), static_cast<double>(first[rank].state), 64);
    EXPECT_EQ(second[rank].model, first[rank].model);
    EXPECT_NEAR(static_cast<double>(third[rank].model), static_cast<double>(first[rank].model) / 2, 128);
  }
}

}  // namespace bellows::train::divided_ranks
