// What saves activations: computed again and offloaded bit for bit as plain, in fewer bits near it and reproducibly.
#include "bellows/train/step/activations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "bellows/core/seed.h"
#include "bellows/tap/allocator.h"
#include "bellows/train/step/train_loop.h"
#include "tests/train/ranks_jobs.h"

namespace bellows::train {

namespace {

using testing::AllOf;
using testing::HasSubstr;

struct ActivationRun {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
};

/// An epoch of the digits on a ResNet of three blocks: six steps, the last of a smaller batch.
Recipe activations_recipe() {
  Recipe recipe = digits_recipe();
  recipe.epochs = 1;
  recipe.batch_size = 64;
  return recipe;
}

ActivationRun epoch_of(const Recipe& recipe) {
  TrainLoop loop(make_job(recipe));
  while (loop.epoch() == 0) loop.step();
  return {loop.take_losses(), copies_of(loop.job().model)};
}

void expect_same_run(const ActivationRun& ours, const ActivationRun& plain) {
  EXPECT_EQ(ours.losses, plain.losses);
  expect_same_bits(ours.weights, plain.weights);
}

std::string error_of_loop(Recipe recipe, const char* set) {
  return error_of([&] {
    recipe.set(set);
    const TrainLoop loop(make_job(recipe));
  });
}

/// Most bytes of one step beyond what lives before it.
int64_t peak_of_step(const Recipe& recipe) {
  tap::install_cpu_allocator();
  TrainLoop loop(make_job(recipe));
  loop.run_steps(2);
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  tap::reset_cpu_allocation_peak();
  loop.step();
  return tap::cpu_allocation_counters().peak_bytes - before;
}

}  // namespace

TEST(TrainActivations, RecomputedAndOffloadedIsPlainBitForBit) {
  const TemporaryFolder folder;
  for (const bool accumulates : {false, true}) {
    Recipe recipe = activations_recipe();
    recipe.gradient_accumulation_steps = accumulates ? 2 : 1;
    if (accumulates) recipe.precision = "bf16";
    const ActivationRun plain = epoch_of(recipe);
    recipe.recompute = "blocks";
    expect_same_run(epoch_of(recipe), plain);
    recipe.activation_memory_budget = 0.5;
    recipe.offload_folder = folder.path();
    expect_same_run(epoch_of(recipe), plain);
    recipe.activation_memory_budget = 0;
    recipe.activation_memory_budget_mb = 1;
    expect_same_run(epoch_of(recipe), plain);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(TrainActivations, FewerBitsStayNearAndAreTheSameEveryTime) {
  Recipe recipe = activations_recipe();
  const ActivationRun plain = epoch_of(recipe);
  for (const char* kept_as : {"bf16", "int8", "int4"}) {
    recipe.activation_dtype = kept_as;
    const ActivationRun ours = epoch_of(recipe);
    EXPECT_EQ(ours.losses.front(), plain.losses.front()) << kept_as;  // forward is exact
    EXPECT_NE(ours.losses.at(1), plain.losses.at(1)) << kept_as;
    const bool coarse = recipe.activation_dtype == "int4";
    for (size_t i = 0; i < plain.losses.size(); ++i)
      EXPECT_NEAR(ours.losses[i], plain.losses[i], coarse ? 0.2 : 0.02) << kept_as << ", step " << i;
    if (recipe.activation_dtype == "int8") expect_same_run(epoch_of(recipe), ours);
  }
}

TEST(TrainActivations, AStepHoldsLess) {
  const auto peak_with = [](const char* recompute, const char* activations) {
    Recipe recipe = activations_recipe();
    recipe.recompute = recompute;
    recipe.activation_dtype = activations;
    return static_cast<double>(peak_of_step(recipe));
  };
  const double plain = peak_with("none", "full");
  EXPECT_LT(peak_with("blocks", "full"), 0.92 * plain);  // three blocks, of which the first holds most
  EXPECT_LT(peak_with("none", "int8"), 0.75 * plain);
}

// The rounding of a step depends on no step before: goes on from a checkpoint in the middle of an epoch, in a loop that
// has taken other steps.
TEST(TrainActivations, ARestoredLoopRoundsAsTheOneThatWentOn) {
  Recipe recipe = activations_recipe();
  recipe.recompute = "blocks";
  recipe.activation_dtype = "int8";
  recipe.gradient_accumulation_steps = 2;
  TrainLoop whole(make_job(recipe));
  whole.run_steps(2);
  const checkpoint::State state = whole.state();
  NamedTensors model;
  for (const auto& [name, tensor] : state.model) model.emplace_back(name, tensor.clone());
  checkpoint::State copy = state;
  copy.model = model;
  for (auto& [name, tensor] : copy.optimizer) tensor = tensor.clone();
  whole.run_steps(3);
  const std::vector<at::Tensor> expected = copies_of(whole.job().model);
  TrainLoop other(make_job(recipe));
  other.run_steps(1);
  other.restore(copy);
  other.run_steps(3);
  expect_same_bits(copies_of(other.job().model), expected);
}

TEST(TrainActivations, RanksTrainAsWithoutRecomputation) {
  const auto weights_of = [](const char* recompute, const char* data_parallel) {
    Recipe recipe = activations_recipe();
    recipe.recompute = recompute;
    recipe.data_parallel = data_parallel;
    recipe.bucket_mb = 1;
    std::vector<Job> jobs = jobs_for(2, recipe);
    std::vector<at::Tensor> result;
    parallel::testing::run_ranks(2, [&](const comm::Group& group) {
      Job& job = jobs[static_cast<size_t>(group.rank())];
      job.ranks = group;
      TrainLoop loop(std::move(job));
      loop.run_steps(3);
      if (group.rank() == 0) result = copies_of(loop.job().model);
    });
    return result;
  };
  for (const char* data_parallel : {"ddp", "zero2", "zero3"})
    expect_same_bits(weights_of("blocks", data_parallel), weights_of("none", data_parallel));
}

TEST(TrainActivations, WhatDoesNotGoTogetherIsSaid) {
  Recipe recipe = activations_recipe();
  EXPECT_THAT(error_of_loop(recipe, "recompute=block"), AllOf(HasSubstr("none, blocks"), HasSubstr("\"blocks\"?")));
  EXPECT_THAT(error_of_loop(recipe, "activation_memory_budget=1.5"),
              HasSubstr("activation_memory_budget = \"1.5\": expected a number of 0"));
  EXPECT_THAT(error_of_loop(recipe, "activation_memory_budget=0.5"), HasSubstr("got recompute = none"));
  Recipe kept = recipe;
  kept.recompute = "blocks";
  kept.activation_memory_budget = 0.5;
  EXPECT_THAT(error_of_loop(kept, "activation_dtype=int8"), HasSubstr("needs activation_memory_budget = 0, got 0.5"));
  EXPECT_THAT(error_of_loop(kept, "activation_memory_budget_mb=3"), HasSubstr("got 0.5 and 3"));
  EXPECT_THAT(error_of_loop(recipe, "activation_memory_budget_mb=3"),
              HasSubstr("activation_memory_budget_mb = 3 works only with recompute = blocks"));
  EXPECT_THAT(error_of_loop(recipe, "activation_dtype=int2"), HasSubstr("full, bf16, int8, int4"));
  EXPECT_THAT(error_of_loop(recipe, "offload_folder=/nowhere/at/all"), HasSubstr("offload_folder = /nowhere/at/all"));
  EXPECT_THAT(error_of_loop(recipe, "offload_reserve_mb=1"), HasSubstr("needs offload_folder"));
  recipe.offload_folder = ".";
  EXPECT_THAT(error_of_loop(recipe, "offload_reserve_mb=16777216"), HasSubstr("bytes are available there"));
  recipe.model = "mlp";
  recipe.image_size = 8;
  EXPECT_THAT(error_of_loop(recipe, "recompute=blocks"),
              AllOf(HasSubstr("\"mlp\""), HasSubstr("does not define blocks")));
  EXPECT_EQ(recompute_obstacle(recipe), "the model mlp does not define blocks");
  EXPECT_EQ(recompute_obstacle(activations_recipe()), "");
}

TEST(TrainActivations, ALoopLeavesTheModelAsItWas) {
  Recipe recipe = activations_recipe();
  recipe.recompute = "blocks";
  recipe.activation_memory_budget = 0.25;
  Job job = make_job(recipe);
  const Model model = job.model;
  const at::Tensor images = torch::ones({4, 1, 8, 8});
  const auto bytes_kept = [&] {  // by one forward pass
    const int64_t before = tap::cpu_allocation_counters().current_bytes;
    const at::Tensor y = model.forward(images);
    return static_cast<double>(tap::cpu_allocation_counters().current_bytes - before);
  };
  tap::install_cpu_allocator();
  bytes_kept();  // the first pass makes what stays
  const double plain = bytes_kept();
  {
    const TrainLoop loop(std::move(job));
    EXPECT_EQ(loop.activations().describe(),
              "activations: 3 blocks recomputed in backward, keeping 25 % of their bytes");
    EXPECT_LT(bytes_kept(), 0.9 * plain);
  }
  EXPECT_GT(bytes_kept(), 0.98 * plain);
}

}  // namespace bellows::train
