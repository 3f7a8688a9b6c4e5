#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ladder/ladder_world.h"
#include "tests/support/captured_log.h"

namespace bellows::train {

TEST(Ladder, EvaluatesOftenNearTheTargetSeldomFarFromIt) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) { return recipe ? 0.5 : 1.0; };
  const LadderReport report = climb(world, {sets_channels_last()}, {.seeds = 2});
  const auto& points = report.plain.curves.at(0).points;
  ASSERT_GE(points.size(), 20u);
  for (size_t i = points.size() / 2; i < points.size(); ++i) {
    EXPECT_LE(points[i].samples - points[i - 1].samples, std::max<int64_t>(64, points[i].samples / 25)) << i;
    EXPECT_GT(points[i].seconds, points[i - 1].seconds);
  }
  const LadderReport every = climb(world, {}, {.seeds = 1, .eval_every_steps = 16});
  for (const auto& point : every.plain.curves.at(0).points) EXPECT_NEAR(point.samples % 500, 0, 32);
}

TEST(Ladder, TargetIsAMedianOverSeedsWithItsRange) {
  LadderWorld world;
  world.noise = 0.2;
  world.ms_per_sample = [](const Recipe* recipe) { return recipe && recipe->channels_last ? 0.5 : 1.0; };
  const LadderReport report = climb(world, {sets_channels_last()}, {.seeds = 3});
  for (const RungResult* rung : {&report.plain, &report.top()}) {
    EXPECT_EQ(rung->curves.size(), 3u);
    EXPECT_LT(rung->time_to_target_range.low, rung->time_to_target_s);
    EXPECT_GT(rung->time_to_target_range.high, rung->time_to_target_s);
  }
  EXPECT_NEAR(report.speedup.ratio, 2, 0.2);
  EXPECT_GT(report.speedup.low, 1);
}

TEST(Ladder, OverTheStartIsTheProductOfTheRungs) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) {
    return recipe ? (recipe->channels_last ? 0.5 : 1.0) * (is_bf16(recipe) ? 0.8 : 1.0) : 1.0;
  };
  const LadderReport report = climb(world, {sets_channels_last(), sets_bf16()});
  const RungResult& top = report.rungs[1];
  EXPECT_NEAR(top.speedup.ratio, 1.25, 0.02);
  const RatioInterval& over_start = top.samples_per_s_over_start;
  EXPECT_NEAR(over_start.ratio, 2.5, 0.05);
  EXPECT_LT(over_start.low, 2.5);
  EXPECT_GT(over_start.high - over_start.low, 2 * (top.speedup.high - top.speedup.low) * 0.9);
  EXPECT_NEAR(top.target_over_start, 2.5, 0.05);
  EXPECT_DOUBLE_EQ(top.target_over_start, report.plain.time_to_target_s / top.time_to_target_s);
  EXPECT_TRUE(std::isnan(climb(world, {sets_channels_last()}, {.seeds = 1}).rungs[0].target_over_start))
      << "two seeds on both sides, or none";
  EXPECT_NEAR(top.samples_per_s, 2500, 50);
  EXPECT_LE(top.step_ms_interval.low, top.step_ms);
  EXPECT_GE(top.step_ms_interval.high, top.step_ms);
}

TEST(Ladder, ARungThatIsJudgedByTheTargetMayBeSlowerPerSample) {
  LadderWorld world;
  Technique schedule = rung_that(
      "one_cycle", [](Recipe& recipe) { recipe.warmup_epochs = 1; }, Exactness::lossy);
  schedule.judged_by_target = true;
  world.ms_per_sample = [](const Recipe* recipe) { return recipe && recipe->warmup_epochs == 1 ? 1.1 : 1.0; };
  world.epochs_needed = [](const Recipe* recipe) { return recipe && recipe->warmup_epochs == 1 ? 2.0 : 4.0; };
  const LadderReport sooner = climb(world, {schedule});
  EXPECT_EQ(sooner.rungs[0].verdict, Verdict::kept) << sooner.rungs[0].note;
  EXPECT_TRUE(sooner.rungs[0].judged_by_target);
  EXPECT_NEAR(sooner.rungs[0].speedup.ratio, 4 / 2.2, 0.1);
  EXPECT_NEAR(sooner.rungs[0].samples_per_s, 1000 / 1.1, 30);
  EXPECT_NEAR(sooner.rungs[0].samples_per_s_over_start.ratio, 1 / 1.1, 0.03) << "no ratio of times in it";
  EXPECT_TRUE(std::isnan(sooner.speedup_equal_batch.ratio)) << "another course of training has no place in this figure";

  world.epochs_needed = [](const Recipe* recipe) { return recipe && recipe->warmup_epochs == 1 ? 5.0 : 4.0; };
  int runs = 0;
  const LadderReport later = climb(world, {schedule}, {}, {}, [&](const LadderEvent& event) {
    runs += event.rung->technique == "one_cycle" && event.activity == "target 2/3";
  });
  EXPECT_EQ(later.rungs[0].verdict, Verdict::later_at_target);
  EXPECT_EQ(runs, 0) << "the first seed has said it all";
}

TEST(Ladder, ARunThatFailsIsARungThatIsNotKept) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) {
    TORCH_CHECK(!recipe || !recipe->channels_last, "the loss became NaN at step 7.");
    return is_bf16(recipe) ? 0.5 : 1.0;
  };
  const LadderReport report = climb(world, {sets_channels_last(), sets_bf16()});
  EXPECT_EQ(report.rungs[0].verdict, Verdict::failed);
  EXPECT_EQ(report.rungs[0].note, "the loss became NaN at step 7.");
  EXPECT_TRUE(report.rungs[1].kept()) << "the climb goes on";
}

TEST(Ladder, AFailureInTheLastComparisonKeepsWhatWasMeasured) {
  LadderWorld world;
  bool last = false;
  world.ms_per_sample = [&](const Recipe* recipe) {
    TORCH_CHECK(!last, "the process of a training run ended early.");
    return recipe ? 0.5 : 1.0;
  };
  const LadderReport report = climb(world, {sets_channels_last()}, {}, {}, [&](const LadderEvent& event) {
    last |= event.rung->kept() && event.finished && event.rung->technique != "plain";
  });
  EXPECT_EQ(report.failure, "the process of a training run ended early.");
  EXPECT_TRUE(report.rungs[0].kept());
  EXPECT_NEAR(report.rungs[0].samples_per_s, 2000, 30);
  EXPECT_TRUE(std::isnan(report.speedup.ratio));
}

TEST(Ladder, PlainsStepIsThatOfItsRunsToTheTarget) {
  LadderWorld world;
  world.noise = 0;
  double of_the_hour = 2;  // the machine is slow at first
  world.ms_per_sample = [&](const Recipe* recipe) { return of_the_hour * (recipe ? 0.5 : 1.0); };
  const LadderReport report = climb(world, {sets_channels_last()}, {}, {}, [&](const LadderEvent& event) {
    if (event.finished && event.rung->technique != "plain") of_the_hour = 1;
  });
  EXPECT_NEAR(report.plain.step_ms, report.plain.shares.total_ms(), 1e-6) << "the table and the shares agree";
  EXPECT_NEAR(report.plain.samples_per_s, 1000, 1e-6);
  EXPECT_NEAR(report.rungs[0].samples_per_s, 2000, 1e-6) << "the rungs hang on it";
  EXPECT_THAT(report.plain.runs_again, testing::MatchesRegex("seed 1 took .* s, .* s"));
}

TEST(Ladder, OnePairOfRunsIsAFindingOnlyWhereItIsClear) {
  LadderWorld world;
  double gain = 1.05;
  Technique schedule = rung_that(
      "one_cycle", [](Recipe& recipe) { recipe.warmup_epochs = 1; }, Exactness::lossy);
  schedule.judged_by_target = true;
  world.ms_per_sample = [&](const Recipe* recipe) { return recipe && recipe->warmup_epochs == 1 ? 1 / gain : 1.0; };
  const RungResult unclear = climb(world, {schedule}, {.seeds = 1}).rungs[0];
  EXPECT_EQ(unclear.measured_speed, Effect::unknown);
  EXPECT_EQ(unclear.verdict, Verdict::no_effect);
  gain = 1.5;
  const RungResult clear = climb(world, {schedule}, {.seeds = 1}).rungs[0];
  EXPECT_EQ(clear.measured_speed, Effect::helps);
  EXPECT_TRUE(clear.kept());
}

TEST(Ladder, MemoryComparesLikeWithLike) {
  LadderWorld world;
  world.noise = 0;
  world.bytes_later = 500;  // a whole run holds more than its first steps
  const LadderReport report = climb(world, {sets_channels_last()});
  EXPECT_EQ(report.plain.peak_bytes, 1500);
  EXPECT_EQ(report.rungs[0].verdict, Verdict::no_effect);
  EXPECT_EQ(report.rungs[0].peak_bytes, 1000) << "of the first steps";
  EXPECT_EQ(report.rungs[0].memory_ratio, 1) << "against the first steps";
  EXPECT_EQ(report.rungs[0].measured_memory, Effect::none);
  EXPECT_TRUE(std::isnan(report.rungs[0].memory_over_start));
}

TEST(Ladder, MemoryIsJudgedByThePeakAndSaysWhatItCosts) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) {
    return recipe ? (is_bf16(recipe) ? 4.0 : 1.0) * (recipe->batch_size == 16 ? 1.25 : 1.0) : 1.0;
  };
  world.bytes = [](const Recipe* recipe) {
    return recipe ? int64_t{1000} - 300 * is_bf16(recipe) - 200 * (recipe->batch_size == 16) : int64_t{1000};
  };
  Technique smaller = rung_that("accumulate", [](Recipe& recipe) { recipe.batch_size = 16; });
  smaller.expected = {.time_factor = 1.2, .memory_factor = 0.8};
  const LadderReport report = climb(world, {sets_bf16(), sets_channels_last(), smaller}, {.goal = LadderGoal::memory});
  EXPECT_TRUE(report.rungs[0].kept()) << "a quarter as fast, and kept: " << report.rungs[0].note;
  EXPECT_NEAR(report.rungs[0].speedup.ratio, 0.25, 0.01);
  EXPECT_NEAR(report.rungs[0].memory_ratio, 1 / 0.7, 1e-9);
  EXPECT_EQ(report.rungs[1].verdict, Verdict::no_effect);
  EXPECT_TRUE(report.rungs[2].kept());
  EXPECT_EQ(report.rungs[2].peak_bytes, 500);
  EXPECT_NEAR(report.rungs[2].memory_over_start, 2, 1e-9);
  EXPECT_EQ(report.rungs[2].expected_speed, Effect::costs);
  EXPECT_EQ(report.rungs[2].measured_speed, Effect::costs);
  EXPECT_EQ(report.rungs[2].measured_memory, Effect::helps);

  world.epochs_needed = [](const Recipe* recipe) { return is_bf16(recipe) ? 1000.0 : 4.0; };
  const LadderReport blind = climb(world, {sets_bf16()}, {.goal = LadderGoal::memory, .max_epochs = 6});
  EXPECT_EQ(blind.rungs[0].verdict, Verdict::misses_target) << "small and useless";
}

TEST(Ladder, SharesOfAStepComeFromTheRunsToTheTarget) {
  LadderWorld world;
  world.noise = 0;
  const LadderReport report = climb(world, {});
  const StepShares& shares = report.plain.shares;
  EXPECT_NEAR(shares.backward_ms, 3, 1e-9);
  EXPECT_NEAR(shares.total_ms(), 1000.0 / 32, 0.8);  // 1 ms a sample
  EXPECT_NEAR(shares.other_ms, shares.total_ms() - 6.5, 1e-9);
}

TEST(Ladder, StopsWhileCodeIsCompiled) {
  LadderWorld world;
  world.compiles_for_ever = true;
  int asked = 0;
  const LadderReport report = climb(world, {sets_channels_last()}, {}, [&] { return ++asked > 20; });
  EXPECT_TRUE(report.interrupted);
  EXPECT_GE(asked, 21);
}

TEST(Ladder, MeasuresWithoutCodeThatIsNeverReady) {
  LadderWorld world;
  world.compiles_for_ever = true;
  world.ms_per_sample = [](const Recipe* recipe) { return recipe ? 5 : 10.0; };
  const CapturedLog log;
  const LadderReport report = climb(world, {sets_channels_last()});
  EXPECT_TRUE(report.rungs[0].kept());
  EXPECT_THAT(log.text(), ::testing::HasSubstr("code is still being compiled after 600 s"));
}

TEST(Ladder, TwoLaddersShareTheTechniques) {
  Registry<Technique> registry("technique");
  registry.add(sets_channels_last());
  Technique both = sets_bf16();
  both.saves_memory = true;
  registry.add(both);
  Technique slow = rung_that("recompute", [](Recipe&) {});
  slow.saves_memory = true;
  slow.expected.time_factor = 1.3;
  registry.add(slow);
  const auto names = [&](LadderGoal goal) {
    std::vector<std::string> result;
    for (const Technique& technique : techniques_for(registry, goal)) result.push_back(technique.name);
    return result;
  };
  EXPECT_EQ(names(LadderGoal::speed), (std::vector<std::string>{"channels_last", "bf16"}));
  EXPECT_EQ(names(LadderGoal::memory), (std::vector<std::string>{"bf16", "recompute"}));
}

}  // namespace bellows::train
