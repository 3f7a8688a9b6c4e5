#include "bellows/train/ladder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "bellows/core/seed.h"
#include "bellows/train/recipe.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

/// A world in which the speed and the learning of every recipe are known and time passes only when somebody trains.
struct LadderWorld {
  double clock_s = 0;
  double noise = 0.01;
  int64_t live_bytes = 0, peak = 0;
  RandomStream random{7};
  std::vector<double> evaluations;
  std::function<double(const Recipe*)> ms_per_sample = [](const Recipe*) { return 1.0; };
  std::function<int64_t(const Recipe*)> epochs_needed = [](const Recipe*) { return int64_t{4}; };
  std::function<int64_t(const Recipe*)> bytes = [](const Recipe*) { return int64_t{1000}; };
};

class FakeLadderJob final : public LadderJob {
 public:
  FakeLadderJob(LadderWorld& world, const Recipe* recipe)
      : world_(world), recipe_(recipe ? *recipe : Recipe{}), plain_(!recipe) {
    world_.live_bytes += world_.bytes(which());
  }
  ~FakeLadderJob() override { world_.live_bytes -= world_.bytes(which()); }

  int64_t run_steps(int64_t n) override {
    world_.peak = std::max(world_.peak, world_.live_bytes);
    int64_t samples = 0;
    for (int64_t i = 0; i < n; ++i, ++step_) {
      const bool last = step_ % steps_per_epoch() == steps_per_epoch() - 1;
      samples += last ? samples_per_epoch() - (steps_per_epoch() - 1) * recipe_.batch_size : recipe_.batch_size;
    }
    const double jitter = 1 + world_.noise * (world_.random.uniform() - 0.5);
    world_.clock_s += 1e-3 * static_cast<double>(samples) * world_.ms_per_sample(which()) * jitter;
    return samples;
  }
  int64_t steps_per_epoch() const override {
    return (samples_per_epoch() + recipe_.batch_size - 1) / recipe_.batch_size;
  }
  int64_t samples_per_epoch() const override { return 1000; }
  double evaluate() override {
    world_.clock_s += 100;  // must not be counted
    return step_ / steps_per_epoch() >= world_.epochs_needed(which()) ? 0.98 : 0.5;
  }

 private:
  const Recipe* which() const { return plain_ ? nullptr : &recipe_; }

  LadderWorld& world_;
  Recipe recipe_;
  bool plain_;
  int64_t step_ = 0;
};

class FakeLadderJobs final : public LadderJobs {
 public:
  explicit FakeLadderJobs(LadderWorld& world) : world_(world) {}
  std::unique_ptr<LadderJob> plain(uint64_t) override { return std::make_unique<FakeLadderJob>(world_, nullptr); }
  std::unique_ptr<LadderJob> with(const Recipe& recipe, uint64_t) override {
    return std::make_unique<FakeLadderJob>(world_, &recipe);
  }

 private:
  LadderWorld& world_;
};

Technique rung_that(std::string name, std::function<void(Recipe&)> apply, Exactness exactness = Exactness::exact) {
  return {.name = name,
          .title = name,
          .apply = std::move(apply),
          .obstacle = [](const Recipe&, const Machine&) { return std::string(); },
          .exactness = exactness};
}

Technique sets_channels_last() {
  return rung_that("channels_last", [](Recipe& recipe) { recipe.channels_last = true; });
}

Technique sets_bf16() {
  return rung_that(
      "bf16", [](Recipe& recipe) { recipe.precision = "bf16"; }, Exactness::lossy);
}

Technique doubles_batch() {
  Technique technique = rung_that(
      "larger_batch",
      [](Recipe& recipe) {
        recipe.batch_size *= 2;
        recipe.lr *= 2;
      },
      Exactness::lossy);
  technique.equal_batch = false;
  return technique;
}

bool is_bf16(const Recipe* recipe) {
  return recipe && recipe->precision == "bf16";
}

LadderReport climb(LadderWorld& world, const std::vector<Technique>& techniques, LadderOptions options = {},
                   std::function<bool()> stop = {}, const std::function<void(const LadderEvent&)>& on_event = {}) {
  FakeLadderJobs jobs(world);
  Recipe base;
  base.batch_size = 32;
  LadderInstruments instruments;
  instruments.seconds = [&world] { return world.clock_s; };
  instruments.reset_peak = [&world] { world.peak = world.live_bytes; };
  instruments.peak_bytes = [&world] { return world.peak; };
  instruments.stop = std::move(stop);
  return run_ladder(base, techniques, jobs, options, instruments, on_event);
}

}  // namespace

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
  EXPECT_NEAR(rung.time_to_target_s, 4 * 0.5, 0.03) << "evaluation must not be in it";
  EXPECT_EQ(rung.epochs, 4);
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
  EXPECT_EQ(report.speedup.ratio, 1);
  EXPECT_EQ(report.speedup_equal_batch.ratio, 1);
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
  world.epochs_needed = [](const Recipe* recipe) { return is_bf16(recipe) ? int64_t{1000} : int64_t{4}; };
  const LadderReport report = climb(world, {sets_bf16()}, {.max_epochs = 6});
  EXPECT_EQ(report.rungs[0].verdict, Verdict::misses_target);
  EXPECT_TRUE(std::isnan(report.rungs[0].time_to_target_s));
  EXPECT_EQ(report.rungs[0].accuracy, 0.5);
  EXPECT_EQ(report.speedup.ratio, 1);
}

TEST(Ladder, MoreSamplesASecondMustMeanAnEarlierTarget) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) { return recipe && recipe->batch_size == 64 ? 0.8 : 1.0; };
  world.epochs_needed = [](const Recipe* recipe) {
    return recipe && recipe->batch_size == 64 ? int64_t{6} : int64_t{4};
  };
  const LadderReport late = climb(world, {doubles_batch()});
  EXPECT_EQ(late.rungs[0].verdict, Verdict::later_at_target) << late.rungs[0].note;
  EXPECT_EQ(late.rungs[0].batch_size, 64);
  EXPECT_DOUBLE_EQ(late.rungs[0].learning_rate, 2 * Recipe{}.lr);

  world.epochs_needed = [](const Recipe*) { return int64_t{4}; };
  const LadderReport soon = climb(world, {sets_channels_last(), doubles_batch()});
  EXPECT_EQ(soon.rungs[1].verdict, Verdict::kept);
  EXPECT_NEAR(soon.speedup.ratio, 1.25, 0.02);
  EXPECT_EQ(soon.speedup_equal_batch.ratio, 1) << "a larger batch has no place in the figure at equal batch";
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
    stop |= event.finished && event.finished->technique == "channels_last";
  };
  const LadderReport report = climb(
      world, {sets_channels_last(), sets_bf16()}, {}, [&] { return stop; }, on_event);
  EXPECT_TRUE(report.interrupted);
  EXPECT_TRUE(report.rungs[0].kept());
  EXPECT_EQ(report.rungs[1].verdict, Verdict::not_measured);
  EXPECT_TRUE(nlohmann::json::parse(to_json(report))["interrupted"]);
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
    if (event.title == "larger_batch" && event.activity == "timed windows") activities.push_back(event.activity);
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
  EXPECT_THAT(message({.target_accuracy = 97}), HasSubstr("97 % is 0.97"));
  EXPECT_THAT(message({.pairs = 4}), HasSubstr("at least 5 pairs"));
  EXPECT_THAT(message({.seeds = 0}), HasSubstr("at least 1 seed"));
  EXPECT_THAT(message({.target_accuracy = 0.99, .max_epochs = 5}),
              HasSubstr("did not reach an accuracy of 0.99 within 5 epochs"));
}

TEST(Ladder, JsonHasTheFixedKeys) {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) { return recipe ? 0.5 : 1.0; };
  world.epochs_needed = [](const Recipe* recipe) { return is_bf16(recipe) ? int64_t{1000} : int64_t{4}; };
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

TEST(Techniques, RowsAreCompleteAndChangeWhatTheySay) {
  Registry<Technique> techniques("technique");
  register_first_techniques(techniques);
  EXPECT_EQ(techniques.names(),
            (std::vector<std::string>{"threaded_loader", "channels_last", "foreach_optimizer", "fused_optimizer",
                                      "device_metrics", "bf16_autocast", "bf16_weights", "larger_batch"}));
  const std::string page = techniques_page(techniques);
  for (const Technique& row : techniques.rows()) {
    EXPECT_LE(row.title.size(), 17u);
    EXPECT_FALSE(row.changes.empty() || row.source.empty() || row.expected.words.empty()) << row.name;
    EXPECT_EQ(row.tolerance.empty(), row.exactness == Exactness::exact) << row.name;
    EXPECT_THAT(page, HasSubstr("`" + row.name + "`"));
    Recipe off;
    off.loader_threads = 0;
    off.optimizer_impl = "loop";
    off.train_metrics = "sync";
    Recipe on = off;
    row.apply(on);
    EXPECT_FALSE(on == off) << row.name << " changes nothing";
    EXPECT_NO_THROW(on.validate()) << row.name;
    EXPECT_EQ(on.batch_size == off.batch_size && on.lr == off.lr, row.equal_batch) << row.name;
  }
}

TEST(Techniques, Bf16NeedsTheArithmetic) {
  Registry<Technique> techniques("technique");
  register_first_techniques(techniques);
  Machine machine;
  machine.isa = {"avx2", "avx512f"};
  EXPECT_THAT(techniques.at("bf16_autocast").obstacle(Recipe{}, machine), HasSubstr("no bfloat16 arithmetic"));
  machine.isa.push_back("avx512_bf16");
  EXPECT_EQ(techniques.at("bf16_autocast").obstacle(Recipe{}, machine), "");
}

}  // namespace bellows::train
