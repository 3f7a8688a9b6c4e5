// Quantization-aware training on several ranks: all have the same ranges and the same weights after each step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "bellows/train/step/quantized_training.h"
#include "tests/train/ranks_jobs.h"

namespace bellows::train {

namespace {

using parallel::testing::run_ranks;
using ::testing::HasSubstr;

Recipe quantized_ranks_recipe(const std::vector<std::string>& settings = {}) {
  Recipe recipe = digits_recipe();
  recipe.quantize = "int8";
  for (const std::string& setting : settings) recipe.set(setting);
  recipe.validate();
  return recipe;
}

NamedTensors ranges_of(const TrainLoop& loop) {
  NamedTensors ranges;
  for (const auto& [name, value] : loop.state().extra) {
    if (name.starts_with("quantize.")) ranges.emplace_back(name, value.clone());
  }
  return ranges;
}

struct RankState {
  std::vector<at::Tensor> weights;
  NamedTensors ranges;
  std::vector<double> losses;
};

RankState state_of(TrainLoop& loop) {
  RankState state{.weights = {}, .ranges = ranges_of(loop), .losses = loop.take_losses()};
  for (const at::Tensor& parameter : loop.job().model.parameters()) state.weights.push_back(parameter.detach().clone());
  return state;
}

std::vector<RankState> states_after(const Recipe& recipe, int ranks, int64_t steps) {
  std::vector<Job> jobs = jobs_for(ranks, recipe);
  std::vector<RankState> states(jobs.size());
  run_ranks(ranks, [&](const comm::Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    if (ranks > 1) jobs[rank].ranks = group;
    TrainLoop loop(std::move(jobs[rank]));
    loop.run_steps(steps);
    states[rank] = state_of(loop);
  });
  return states;
}

void expect_same(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_TRUE(a[i].second.equal(b[i].second)) << a[i].first << ": " << a[i].second << " and " << b[i].second;
  }
}

void expect_same_ranks(const std::vector<RankState>& states, size_t ranges) {
  EXPECT_EQ(states.front().ranges.size(), ranges);
  for (const RankState& state : states) {
    expect_same(state.ranges, states.front().ranges);
    for (size_t i = 0; i < state.weights.size(); ++i)
      EXPECT_TRUE(state.weights[i].equal(states.front().weights[i])) << "parameter " << i;
  }
}

/// Rank 0's losses and the final weights of each rank. Params: stop_after – steps until rank 0 asks for the end; −1: never
std::vector<RankState> fit_two_ranks(const Recipe& recipe, int64_t stop_after, bool resume) {
  std::vector<Job> jobs = jobs_for(2, recipe);
  std::vector<RankState> states(2);
  run_ranks(2, [&](const comm::Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const Model model = jobs[rank].model;
    Trainer* self = nullptr;
    Callbacks callbacks;
    callbacks.on_step = [&](const TrainLoop& loop) {
      states[rank].losses.push_back(loop.last_loss().item<double>());
      states[rank].ranges = ranges_of(loop);
      if (rank == 0 && loop.step_count() == stop_after) self->request_stop();
    };
    Trainer trainer(recipe, callbacks);
    self = &trainer;
    trainer.resume(resume);
    trainer.set_process_group(group);
    trainer.fit(std::move(jobs[rank]));
    for (const at::Tensor& parameter : model.parameters()) states[rank].weights.push_back(parameter.detach().clone());
  });
  return states;
}

}  // namespace

TEST(QuantizedRanks, HaveTheSameRangesAndWeights) {
  for (const std::vector<std::string>& settings :
       std::vector<std::vector<std::string>>{{},
                                             {"quantize_start_step=2", "gradient_accumulation_steps=2"},
                                             {"data_parallel=zero2"},
                                             {"on_nan=skip", "data_parallel=zero1"},
                                             {"compile=step", "model=mlp"}}) {
    SCOPED_TRACE(settings.empty() ? "plain" : settings.back());
    const bool mlp = !settings.empty() && settings.back() == "model=mlp";
    const std::vector<RankState> states = states_after(quantized_ranks_recipe(settings), 2, 5);
    expect_same_ranks(states, mlp ? states.front().ranges.size() : 10);
    EXPECT_FALSE(states.front().ranges.empty());
    EXPECT_TRUE(std::isfinite(states.front().losses.back()));
  }
}

TEST(QuantizedRanks, ObserveAllInputsOfAStep) {
  const Recipe recipe = quantized_ranks_recipe();
  const NamedTensors alone = states_after(recipe, 1, 1).front().ranges, two = states_after(recipe, 2, 1).front().ranges;
  ASSERT_EQ(alone.front().first, "quantize.conv1.input_range");
  EXPECT_TRUE(alone.front().second.equal(two.front().second)) << "the images of the batch";
  // Without quantization in the step before, the other layers differ only by their batch norms.
  for (size_t i = 0; i < alone.size(); ++i)
    EXPECT_TRUE(at::allclose(alone[i].second, two[i].second, 0.5, 0.1)) << alone[i].first;
}

TEST(QuantizedRanks, ResumeWithIdenticalBits) {
  const TemporaryFolder one, two;
  const auto recipe = [](const TemporaryFolder& folder) {
    Recipe made = quantized_ranks_recipe({"quantize_start_step=3", "epochs=1"});
    made.run_folder = folder.path();
    return made;
  };
  const std::vector<RankState> whole = fit_two_ranks(recipe(one), -1, false);
  ASSERT_EQ(whole.front().losses.size(), 12u);
  std::vector<RankState> parts = fit_two_ranks(recipe(two), 5, false);
  ASSERT_LT(parts.front().losses.size(), 12u);
  const std::vector<RankState> rest = fit_two_ranks(recipe(two), -1, true);
  std::vector<double> losses = parts.front().losses;
  losses.insert(losses.end(), rest.front().losses.begin(), rest.front().losses.end());
  EXPECT_EQ(losses, whole.front().losses);
  expect_same_ranks(rest, 10);
  expect_same(rest.front().ranges, whole.front().ranges);
  for (size_t i = 0; i < whole.front().weights.size(); ++i)
    EXPECT_TRUE(rest.front().weights[i].equal(whole.front().weights[i])) << "parameter " << i;
}

TEST(QuantizedRanks, DoNotLearnScales) {
  const Recipe recipe = quantized_ranks_recipe({"quantize_scales=learned"});
  try {
    states_after(recipe, 2, 1);
    FAIL() << "expected an exception";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("quantize_scales = learned works only with one process"));
  }
}

}  // namespace bellows::train
