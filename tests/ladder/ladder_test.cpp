#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "bellows/ladder/json_report.h"
#include "bellows/train/resolved_job.h"
#include "tests/ladder/ladder_world.h"

namespace bellows::train {

using testing::HasSubstr;

TEST(Ladder, KeepsWhatIsFasterAndReportsTheTrueRatio) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) { return recipe && recipe->channels_last ? 0.5 : 1.0; };
  const LadderReport report = climb(world, {sets_channels_last()});
  ASSERT_EQ(report.rungs.size(), 1u);
  const RungResult& rung = report.rungs[0];
  EXPECT_EQ(rung.verdict, Verdict::kept) << rung.note;
  EXPECT_NEAR(rung.speedup.ratio, 2, 0.02);
  EXPECT_LE(rung.speedup.low, rung.speedup.ratio);
  EXPECT_GE(rung.speedup.high, rung.speedup.ratio);
  EXPECT_NEAR(rung.samples_per_s, 2000, 20);
  EXPECT_NEAR(rung.step_ms, 0.5 * 1000 / 32, 0.3);  // 32 steps an epoch of 1000 samples
  EXPECT_NEAR(rung.time_to_target_s, 4 * 0.5, 0.08) << "evaluation must not be in it";
  EXPECT_NEAR(rung.epochs, 4, 0.13) << "known to 3 %";
  EXPECT_NEAR(report.speedup.ratio, 2, 0.02);
  EXPECT_NEAR(report.speedup_equal_batch.ratio, 2, 0.02);
  EXPECT_THAT(report.recipe_yaml, HasSubstr("channels_last: true"));
}

TEST(Ladder, DropsWhatHasNoEffect) {
  LadderWorld world;
  world.noise = 0;  // ratios of exactly 1: the interval is the point 1, which does not exclude 1
  const LadderReport report = climb(world, {sets_channels_last()});
  EXPECT_EQ(report.rungs[0].verdict, Verdict::no_effect);
  EXPECT_FALSE(report.rungs[0].kept());
  EXPECT_TRUE(std::isnan(report.speedup.ratio)) << "nothing was kept, nothing was compared";
  EXPECT_TRUE(std::isnan(report.speedup_equal_batch.ratio));
  EXPECT_EQ(report.plain.runs_again, "");
  EXPECT_THAT(report.recipe_yaml, HasSubstr("channels_last: false"));
}

TEST(Ladder, NoiseAloneIsSeldomKept) {
  int kept = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    LadderWorld world;
    world.noise = 0.2;
    world.random = RandomStream(seed);
    kept += climb(world, {sets_channels_last()}, {.seeds = 1}).rungs[0].kept();
  }
  EXPECT_LE(kept, 22);  // one in twenty is what a 90 % interval allows: 10, and four standard deviations
}

TEST(Ladder, SlowerIsDroppedAndTheNextRungStandsOnTheLastKept) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) {
    if (!recipe) return 1.0;
    return (recipe->channels_last ? 2.0 : 1.0) * (recipe->optimizer_impl == "foreach" ? 0.8 : 1.0) *
           (is_bf16(recipe) ? 0.5 : 1.0);
  };
  Recipe loop;
  loop.optimizer_impl = "loop";
  FakeLadderJobs jobs(world);
  const auto foreach = rung_that("foreach", [](Recipe& recipe) { recipe.optimizer_impl = "foreach"; });
  LadderInstruments instruments;
  instruments.seconds = [&world] { return world.clock_s; };
  const LadderReport report = run_ladder(loop, {sets_channels_last(), foreach, sets_bf16()}, jobs, {}, instruments);
  EXPECT_EQ(report.rungs[0].verdict, Verdict::slower);
  EXPECT_NEAR(report.rungs[0].speedup.ratio, 0.5, 0.01);
  EXPECT_EQ(report.rungs[1].verdict, Verdict::kept);
  EXPECT_NEAR(report.rungs[1].speedup.ratio, 1.25, 0.02) << "against plain, not against the slower rung";
  EXPECT_EQ(report.rungs[2].verdict, Verdict::kept);
  EXPECT_NEAR(report.rungs[2].speedup.ratio, 2, 0.03) << "against foreach alone";
  EXPECT_NEAR(report.speedup.ratio, 2.5, 0.05);
}

TEST(Ladder, FastButBlindIsNotKept) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) { return is_bf16(recipe) ? 0.1 : 1.0; };
  world.epochs_needed = [](const Recipe* recipe) { return is_bf16(recipe) ? 1000.0 : 4.0; };
  const LadderReport report = climb(world, {sets_bf16()}, {.max_epochs = 6});
  EXPECT_EQ(report.rungs[0].verdict, Verdict::misses_target);
  EXPECT_TRUE(std::isnan(report.rungs[0].time_to_target_s));
  EXPECT_NEAR(report.rungs[0].accuracy, 0.9, 0.01);
  EXPECT_TRUE(std::isnan(report.speedup.ratio));
}

TEST(Ladder, MoreSamplesASecondMustMeanAnEarlierTarget) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) { return recipe && recipe->batch_size == 64 ? 0.8 : 1.0; };
  world.epochs_needed = [](const Recipe* recipe) { return recipe && recipe->batch_size == 64 ? 6.0 : 4.0; };
  const LadderReport late = climb(world, {doubles_batch()});
  EXPECT_EQ(late.rungs[0].verdict, Verdict::later_at_target) << late.rungs[0].note;
  EXPECT_EQ(late.rungs[0].batch_size, 64);
  EXPECT_DOUBLE_EQ(late.rungs[0].learning_rate, 2 * with_model_defaults(Recipe{}).lr);

  world.epochs_needed = [](const Recipe*) { return 4.0; };
  const LadderReport soon = climb(world, {sets_channels_last(), doubles_batch()});
  EXPECT_EQ(soon.rungs[1].verdict, Verdict::kept);
  EXPECT_NEAR(soon.speedup.ratio, 1.25, 0.02);
  EXPECT_TRUE(std::isnan(soon.speedup_equal_batch.ratio)) << "a larger batch has no place in the figure at equal batch";
}

TEST(Ladder, EqualBatchFigureTakesTheLastRungBeforeTheBatchChanged) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) {
    if (!recipe) return 1.0;
    return (recipe->channels_last ? 0.5 : 1.0) * (recipe->batch_size == 64 ? 0.8 : 1.0);
  };
  const LadderReport report = climb(world, {sets_channels_last(), doubles_batch()});
  EXPECT_TRUE(report.rungs[1].kept());
  EXPECT_NEAR(report.speedup.ratio, 2.5, 0.03);
  EXPECT_NEAR(report.speedup_equal_batch.ratio, 2, 0.02);
}

TEST(Ladder, PeakIsOfTheRungAlone) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) { return recipe ? 0.5 : 1.0; };
  world.bytes = [](const Recipe* recipe) { return recipe ? int64_t{700} : int64_t{1000}; };
  const LadderReport report = climb(world, {sets_channels_last()});
  EXPECT_EQ(report.plain.peak_bytes, 1000);
  EXPECT_EQ(report.rungs[0].peak_bytes, 700);
  world.ms_per_sample = [](const Recipe*) { return 1.0; };
  world.noise = 0;
  EXPECT_EQ(climb(world, {sets_channels_last()}).rungs[0].peak_bytes, 700) << "also where no run follows";
}

TEST(Ladder, WhatDoesNotApplyIsNotRun) {
  LadderWorld world;
  Technique technique = sets_bf16();
  technique.obstacle = [](const Recipe&, const Machine&) { return std::string("no such arithmetic here"); };
  const LadderReport report = climb(world, {technique});
  EXPECT_EQ(report.rungs[0].verdict, Verdict::does_not_apply);
  EXPECT_EQ(report.rungs[0].note, "no such arithmetic here");
  EXPECT_TRUE(std::isnan(report.rungs[0].step_ms));
}

TEST(Ladder, StopsInOrderWithWhatItHas) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) { return recipe ? 0.5 : 1.0; };
  bool stop = false;
  const auto on_event = [&](const LadderEvent& event) {
    stop |= event.finished && event.rung->technique == "channels_last";
  };
  const LadderReport report = climb(
      world, {sets_channels_last(), sets_bf16()}, {}, [&] { return stop; }, on_event);
  EXPECT_TRUE(report.interrupted);
  EXPECT_TRUE(report.rungs[0].kept());
  EXPECT_EQ(report.rungs[1].verdict, Verdict::not_measured);
  EXPECT_TRUE(nlohmann::json::parse(to_json(report))["interrupted"]);
}

/// Jobs of a caller's own, of which those with bf16 throw what is no c10::Error.
class ThrowingJobs final : public LadderJobs {
 public:
  ThrowingJobs(LadderWorld& world, std::function<void()> fail) : jobs_(world), fail_(std::move(fail)) {}
  std::unique_ptr<LadderJob> plain(uint64_t seed) override { return jobs_.plain(seed); }
  std::unique_ptr<LadderJob> with(const Recipe& recipe, uint64_t seed) override {
    if (is_bf16(&recipe)) fail_();
    return jobs_.with(recipe, seed);
  }

 private:
  FakeLadderJobs jobs_;
  std::function<void()> fail_;
};

TEST(Ladder, AnyExceptionOfAJobFailsItsRungAlone) {
  const std::pair<std::function<void()>, const char*> faults[] = {
      {[] { throw std::bad_alloc(); }, "bad_alloc"},
      {[] { throw std::runtime_error("the caller's own trouble"); }, "the caller's own trouble"}};
  for (const auto& [fail, message] : faults) {
    LadderWorld world;
    world.ms_per_sample = [](const Recipe* recipe) { return recipe ? 0.5 : 1.0; };
    ThrowingJobs jobs(world, fail);
    Recipe base;
    base.batch_size = 32;
    LadderInstruments instruments;
    instruments.seconds = [&world] { return world.clock_s; };
    const LadderReport report = run_ladder(base, {sets_channels_last(), sets_bf16()}, jobs, {}, instruments, {});
    EXPECT_TRUE(report.rungs[0].kept());
    EXPECT_EQ(report.rungs[1].verdict, Verdict::failed);
    EXPECT_THAT(report.rungs[1].note, HasSubstr(message));
    EXPECT_EQ(report.failure, "");
    EXPECT_GT(report.speedup.low, 1) << "the total was measured all the same";
  }
}

TEST(Ladder, TimeLimitLeavesRungsOut) {
  LadderWorld world;
  const LadderReport report = climb(world, {sets_channels_last(), sets_bf16()}, {.max_seconds = 1});
  EXPECT_EQ(report.rungs[0].verdict, Verdict::not_measured);
  EXPECT_THAT(report.rungs[1].note, HasSubstr("time limit"));
  EXPECT_FALSE(report.interrupted);
}

TEST(Ladder, WindowsTakeTurnsAndHoldEquallyManySamples) {
  LadderWorld world;
  std::vector<std::string> activities;
  const auto on_event = [&](const LadderEvent& event) {
    if (event.rung->technique == "larger_batch" && event.activity == "windows") activities.push_back(event.activity);
  };
  climb(world, {doubles_batch()}, {.pairs = 6}, {}, on_event);
  EXPECT_EQ(activities.size(), 6u);
}

TEST(Ladder, BadOptionsAndUnreachableTargetsAreSaid) {
  LadderWorld world;
  const auto message = [&](const LadderOptions& options) {
    try {
      climb(world, {}, options);
    } catch (const c10::ValueError& error) {
      return user_message(error);
    }
    return std::string("no error");
  };
  EXPECT_THAT(message({.target_accuracy = 97}), HasSubstr("Write 97 % as 0.97"));
  EXPECT_THAT(message({.pairs = 4}), HasSubstr("at least 5 pairs"));
  EXPECT_THAT(message({.seeds = 0}), HasSubstr("at least 1 seed"));
  EXPECT_THAT(message({.target_accuracy = 0.99, .max_epochs = 5}),
              HasSubstr("did not reach an accuracy of 0.99 within 5 epochs"));
}

TEST(Ladder, JsonHasTheFixedKeys) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) { return recipe ? 0.5 : 1.0; };
  world.epochs_needed = [](const Recipe* recipe) { return is_bf16(recipe) ? 1000.0 : 4.0; };
  const auto json = nlohmann::json::parse(to_json(climb(world, {sets_channels_last(), sets_bf16()})));
  for (const char* key : {"machine", "baseline", "rungs", "speedup", "speedup_equal_batch"})
    EXPECT_TRUE(json.contains(key)) << key;
  ASSERT_EQ(json["rungs"].size(), 2u);
  for (const auto& rung : json["rungs"]) {
    for (const char* key : {"technique", "kept", "step_ms", "samples_per_s", "peak_bytes", "time_to_target_s",
                            "accuracy", "speedup", "interval"}) {
      EXPECT_TRUE(rung.contains(key)) << key;
    }
    ASSERT_EQ(rung["interval"].size(), 2u);
    EXPECT_LE(rung["interval"][0].get<double>(), rung["speedup"].get<double>());
  }
  EXPECT_TRUE(json["rungs"][0]["kept"].get<bool>());
  EXPECT_EQ(json["machine"]["libtorch"], this_machine().libtorch);
  EXPECT_GT(json["baseline"]["step_ms"].get<double>(), 0);
}

}  // namespace bellows::train
