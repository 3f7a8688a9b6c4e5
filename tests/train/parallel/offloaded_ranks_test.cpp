// Recipes whose shards and optimizer state are in files, on ranks in threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "bellows/checkpoint/saved_checkpoint.h"
#include "bellows/train/trainer.h"
#include "tests/train/ranks_jobs.h"

namespace bellows::train {

namespace {

using parallel::testing::run_ranks;
using testing::HasSubstr;

/// Trains on ranks, and returns the last checkpoint. Params: stop_after – step of rank 0's stop request; -1: none
checkpoint::State train_on(Recipe recipe, const std::string& run_folder, int ranks, int64_t stop_after = -1,
                           bool resume = false) {
  recipe.run_folder = run_folder;
  const FitResult result = fit_on_ranks(recipe, ranks_jobs(recipe, ranks), stop_after, resume);
  return checkpoint::SavedCheckpoint(result.checkpoint).state();
}

void expect_same_checkpoint(const checkpoint::State& got, const checkpoint::State& expected) {
  ASSERT_FALSE(expected.model.empty());
  for (const auto& [mine, theirs] : {std::pair{&got.model, &expected.model}, {&got.optimizer, &expected.optimizer}}) {
    ASSERT_EQ(mine->size(), theirs->size());
    for (size_t i = 0; i < mine->size(); ++i)
      EXPECT_TRUE((*mine)[i].second.equal((*theirs)[i].second)) << (*mine)[i].first;
  }
}

Recipe offloaded(Recipe recipe, const std::string& folder) {
  recipe.offload_parameters = recipe.data_parallel == "zero3" ? "file" : "none";
  recipe.offload_state = "file";
  recipe.offload_shard_folder = folder;
  recipe.validate();
  return recipe;
}

}  // namespace

TEST(OffloadedRanks, GiveTheBitsOfRanksInMemory) {
  std::vector<Recipe> recipes(4, ranks_recipe());
  for (Recipe& recipe : recipes) recipe.data_parallel = "zero3", recipe.epochs = 3;
  recipes[0].ema_decay = 0.9;
  recipes[0].max_grad_norm = 0.05;
  recipes[1].gradient_accumulation_steps = 2;
  recipes[1].mesh = "{data: 2, shard: 2}";
  recipes[1].shard_state_over_all = true;
  recipes[2].data_parallel = "zero2";
  recipes[3].data_parallel = "zero1";
  for (const Recipe& recipe : recipes) {
    SCOPED_TRACE(recipe.data_parallel + " " + recipe.mesh);
    const TemporaryFolder one, two, files;
    const int ranks = recipe.mesh.empty() ? 3 : 4;
    expect_same_checkpoint(train_on(offloaded(recipe, files.path()), two.path(), ranks),
                           train_on(recipe, one.path(), ranks));
    EXPECT_TRUE(std::filesystem::is_empty(files.path()));
  }
}

TEST(OffloadedRanks, ResumeOnOtherNumbersOfRanks) {
  const TemporaryFolder memory, in_files, files;
  Recipe recipe = ranks_recipe();
  recipe.data_parallel = "zero3";
  recipe.epochs = 3;
  const Recipe offloads = offloaded(recipe, files.path());
  train_on(recipe, memory.path(), 3, 5);
  train_on(offloads, in_files.path(), 3, 5);
  expect_same_checkpoint(train_on(offloads, in_files.path(), 2, 12, true),
                         train_on(recipe, memory.path(), 2, 12, true));
  // The place may change between two runs.
  expect_same_checkpoint(train_on(recipe, in_files.path(), 4, -1, true), train_on(recipe, memory.path(), 4, -1, true));
}

TEST(OffloadedRanks, KeysAreChecked) {
  const auto message = [](const std::string& text) { return error_of([&] { Recipe::parse(text); }); };
  EXPECT_THAT(message("data_parallel: zero2\noffload_parameters: host"),
              HasSubstr("offload_parameters = host works only with data_parallel zero3, got zero2"));
  EXPECT_THAT(message("offload_state: file\noffload_shard_folder: /tmp"),
              HasSubstr("offload_state = file works only with data_parallel zero1, zero2 and zero3, got ddp"));
  EXPECT_THAT(message("data_parallel: zero3\noffload_state: file"), HasSubstr("needs offload_shard_folder"));
  EXPECT_THAT(message("data_parallel: zero3\noffload_shard_folder: /tmp"),
              HasSubstr("offload_shard_folder = /tmp is used only by offload_parameters and offload_state = file"));
  EXPECT_THAT(message("data_parallel: zero3\noffload_state: disk"), HasSubstr("none, host, file"));
  EXPECT_THAT(message("device: cuda\ndata_parallel: zero3\noffload_state: host"),
              HasSubstr("needs offload_parameters = host or file, because the host updates only shards that it holds"));
  EXPECT_THAT(message("data_parallel: zero3\noffload_state: file\noffload_shard_folder: /tmp\nallocator_reuse: true"),
              HasSubstr("allocator_reuse = true keeps the memory that offloading to a file frees"));
  EXPECT_NO_THROW(Recipe::parse("data_parallel: zero3\noffload_parameters: host\noffload_state: host"));
}

TEST(OffloadedRanks, AMissingFolderEndsAllRanks) {
  Recipe recipe = ranks_recipe();
  recipe.data_parallel = "zero3";
  recipe = offloaded(recipe, "/nowhere");
  std::vector<Job> jobs = ranks_jobs(recipe, 2);
  run_ranks(2, [&](const comm::Group& group) {
    Job& job = jobs[static_cast<size_t>(group.rank())];
    job.ranks = group;
    EXPECT_THAT(error_of([&] { TrainLoop(std::move(job)); }),
                HasSubstr("offload_parameters: cannot create a file in /nowhere"));
  });
}

}  // namespace bellows::train
