#include "bellows/ladder/memory_target.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "bellows/core/error.h"
#include "bellows/ladder/estimate.h"
#include "bellows/ladder/job.h"
#include "bellows/ladder/json_report.h"
#include "bellows/ladder/process.h"
#include "tests/ladder/ladder_world.h"
#include "tests/train/support.h"

namespace bellows::train {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Saved = MemoryOptions::Saved;
using State = MemoryOptions::State;

namespace {

/// One recipe of a world: what is expected of it, and what is true.
struct Offer {
  MemoryOptions measures;
  double factor = 1;         ///< of the time, as the table expects
  int64_t predicted = 0;     ///< bytes
  int64_t bytes = 0;         ///< 0: as predicted
  double ms_per_sample = 1;  ///< negative: its runs fail
  double epochs_needed = 4;
  bool other_training = false;
};

/// The recipe's weight decay says which offer it is.
struct TargetWorld : LadderWorld {
  explicit TargetWorld(std::vector<Offer> the_offers) : offers(std::move(the_offers)) {
    noise = 0.02;
    evaluation_factor = 0;
    const auto offer = [this](const Recipe* recipe) -> const Offer& {
      return offers.at(static_cast<size_t>(recipe->weight_decay));
    };
    ms_per_sample = [offer](const Recipe* recipe) {
      const double ms = offer(recipe).ms_per_sample;
      TORCH_CHECK(ms > 0, "the loss became NaN at step 7.");
      return ms;
    };
    bytes = [offer](const Recipe* recipe) {
      return offer(recipe).bytes > 0 ? offer(recipe).bytes : offer(recipe).predicted;
    };
    epochs_needed = [offer](const Recipe* recipe) { return offer(recipe).epochs_needed; };
  }

  std::vector<PlanCandidate> candidates() const {
    std::vector<PlanCandidate> result;
    for (size_t i = 0; i < offers.size(); ++i) {
      const Offer& offer = offers[i];
      Recipe recipe;
      recipe.weight_decay = static_cast<double>(i);
      recipe.image_size = 32;
      recipe.image_size_start = 16;
      recipe.growth_epochs = 2;
      std::vector<std::string> techniques;
      if (offer.measures.state != State::as_it_is) techniques.emplace_back("int8_state");
      if (offer.measures.saved != Saved::as_it_is) techniques.emplace_back("recompute");
      result.push_back({.recipe = recipe,
                        .measures = offer.measures,
                        .changes = to_string(offer.measures),
                        .techniques = techniques,
                        .time_factor = offer.factor,
                        .predicted_bytes = offer.predicted,
                        .other_training = offer.other_training});
    }
    return result;
  }

  std::vector<Offer> offers;
};

MemoryTargetReport search(TargetWorld& world, MemoryTarget target, std::function<bool()> stop = {},
                          const std::function<void(const MemoryTargetEvent&)>& on_event = {}) {
  FakeLadderJobs jobs(world);
  LadderInstruments instruments{.seconds = [&world] { return world.clock_s; }, .stop = std::move(stop)};
  return find_recipe_under(world.candidates(), jobs, target, instruments, on_event);
}

std::vector<std::string> measured(const MemoryTargetReport& report) {
  std::vector<std::string> names;
  for (const TargetRung& rung : report.rungs) names.push_back(rung.candidate.changes);
  return names;
}

const Offer as_it_is{.predicted = 1000};
const Offer int8{.measures = {.saved = Saved::in_int8}, .factor = 1.1, .predicted = 600, .ms_per_sample = 1.3};
const Offer recompute{.measures = {.saved = Saved::recomputed}, .factor = 1.25, .predicted = 580, .ms_per_sample = 1.2};
const Offer small_state{.measures = {.state = State::eight_bit}, .factor = 1.02, .predicted = 900};
const Offer state_and_int8{
    .measures = {.state = State::eight_bit, .saved = Saved::in_int8}, .factor = 1.12, .predicted = 500};

}  // namespace

TEST(MemoryTarget, WhatFitsAsItIsIsLeftAsItIs) {
  TargetWorld world({as_it_is, int8, small_state});
  const MemoryTargetReport report = search(world, {.bytes = 1000});
  EXPECT_THAT(measured(report), ElementsAre("nothing"));
  EXPECT_EQ(report.chosen(), &report.rungs[0]);
  EXPECT_EQ(report.expected_slower, 2);
  EXPECT_THAT(target_words(report)[0], HasSubstr("No change is needed"));
  EXPECT_EQ(Recipe::parse(report.recipe_yaml), world.candidates()[0].recipe) << "growth stays in the recipe";
}

TEST(MemoryTarget, TheFastestThatFitsIsMeasuredNotBelieved) {
  TargetWorld world({as_it_is, int8, recompute, small_state, state_and_int8});
  const MemoryTargetReport report = search(world, {.bytes = 650});
  EXPECT_THAT(measured(report), ElementsAre("nothing", "activations in int8", "activation checkpointing"))
      << "in the order expected; what only adds to int8 is no faster, and the state alone needs too much";
  ASSERT_TRUE(report.chosen());
  EXPECT_EQ(report.chosen()->candidate.changes, "activation checkpointing");
  EXPECT_EQ(report.chosen()->peak_bytes, 580);
  EXPECT_NEAR(report.chosen()->step_ms, 1.2 * 32, 0.5);
  EXPECT_NEAR(report.chosen()->time_over_start.ratio, 1.2, 0.01);
  EXPECT_LT(report.chosen()->time_over_start.low, 1.2);
  EXPECT_EQ(report.rungs[0].verdict, TargetVerdict::too_large);
  EXPECT_EQ(report.rungs[1].verdict, TargetVerdict::fits);
  EXPECT_EQ(report.predicted_too_large, 1);
  EXPECT_EQ(report.expected_slower, 1);
  EXPECT_TRUE(report.certain);
}

TEST(MemoryTarget, WhatCannotBeToldApartIsDecidedForFewerChanges) {
  TargetWorld world(
      {as_it_is,
       {.measures = {.state = State::eight_bit, .saved = Saved::recomputed}, .factor = 1.01, .predicted = 500},
       {.measures = {.saved = Saved::in_int8}, .factor = 1.02, .predicted = 500, .ms_per_sample = 1.001}});
  world.noise = 0.1;
  const MemoryTargetReport report = search(world, {.bytes = 650});
  ASSERT_EQ(report.rungs.size(), 3u);
  EXPECT_EQ(report.chosen()->candidate.changes, "activations in int8");
}

TEST(MemoryTarget, WhatNothingReachesEndsWithTheSmallest) {
  TargetWorld world({as_it_is, int8, recompute, small_state, state_and_int8});
  const MemoryTargetReport report = search(world, {.bytes = 100});
  EXPECT_FALSE(report.chosen());
  EXPECT_EQ(report.recipe_yaml, "");
  EXPECT_THAT(measured(report), ElementsAre("nothing", "8-bit optimizer state, activations in int8"))
      << "the smallest, to say it";
  ASSERT_TRUE(report.smallest());
  EXPECT_EQ(report.smallest()->peak_bytes, 500);
  EXPECT_THAT(target_words(report)[0], testing::AllOf(HasSubstr("No recipe fits into 100 B"), HasSubstr("500 B")));
  EXPECT_TRUE(nlohmann::json::parse(to_json(report))["chosen"].is_null());

  world.offers[4].bytes = 440;  // nobody would have thought so
  const MemoryTargetReport lucky = search(world, {.bytes = 450});
  EXPECT_EQ(lucky.chosen()->candidate.measures, world.offers[4].measures);
}

TEST(MemoryTarget, TheFirstPeakCorrectsThePredictions) {
  TargetWorld world({as_it_is, int8, recompute});
  for (Offer& offer : world.offers) offer.bytes = 2 * offer.predicted;
  const MemoryTargetReport none = search(world, {.bytes = 1000});
  EXPECT_EQ(none.rungs.size(), 3u) << "1200 and 1160 were predicted then: last resorts";
  const MemoryTargetReport one = search(world, {.bytes = 1170});
  EXPECT_EQ(one.chosen()->candidate.changes, "activation checkpointing");
}

TEST(MemoryTarget, TheChoiceHasToLearn) {
  Offer blind = recompute;
  blind.ms_per_sample = 1.05;
  blind.epochs_needed = 1000;
  TargetWorld world({as_it_is, int8, blind});
  std::vector<std::string> refused;
  const MemoryTargetReport report =
      search(world, {.bytes = 650, .target_accuracy = 0.97, .max_epochs = 6}, {}, [&](const MemoryTargetEvent& event) {
        if (event.finished && event.activity == "refused") refused.push_back(event.rung->candidate.changes);
      });
  EXPECT_THAT(refused, ElementsAre("activation checkpointing"));
  EXPECT_EQ(report.chosen()->candidate.changes, "activations in int8");
  EXPECT_GE(report.chosen()->accuracy, 0.97);
  EXPECT_NEAR(report.chosen()->time_to_target_s, 4 * 1.3, 0.4);
  EXPECT_EQ(search(world, {.bytes = 650}).chosen()->candidate.changes, "activation checkpointing")
      << "nobody asked what it learns";
  world.evaluation_factor = 2;
  const MemoryTargetReport evaluated = search(world, {.bytes = 650});
  EXPECT_FALSE(evaluated.chosen()) << "evaluation needs more than training";
  EXPECT_EQ(evaluated.rungs[1].evaluation_bytes, 1200);
  EXPECT_THAT(target_words(evaluated)[0], HasSubstr("need 1.1 KiB or more during evaluation"));
}

TEST(MemoryTarget, OneEvaluationSpeaksForOthers) {
  const auto parts = [](int64_t k, Saved saved, int64_t predicted) {
    return Offer{.measures = {.saved = saved, .accumulate = k},
                 .factor = 1.0 + 0.1 * static_cast<double>(k),
                 .predicted = predicted};
  };
  TargetWorld world({as_it_is, parts(1, Saved::in_int8, 600), parts(2, Saved::as_it_is, 500),
                     parts(4, Saved::as_it_is, 300), small_state, state_and_int8});
  const auto offers = world.candidates();
  EvaluationPeaks peaks(offers);
  peaks.add(1, 1000);
  EXPECT_TRUE(peaks.above(0, 950, 1)) << "what becomes of activations is nothing to it";
  EXPECT_TRUE(peaks.above(4, 890, 1)) << "8-bit optimizer state saves 100";
  EXPECT_FALSE(peaks.above(4, 910, 1));
  EXPECT_FALSE(peaks.above(2, 650, 1)) << "a smaller batch may help";
  peaks.add(2, 980);
  EXPECT_TRUE(peaks.above(3, 650, 1)) << "it does not";

  world.evaluation_factor = 2;
  const MemoryTargetReport report = search(world, {.bytes = 650});
  EXPECT_EQ(report.chosen()->candidate.changes, "gradient accumulation over 4 steps");
}

TEST(MemoryTarget, AnotherOptimizerIsForWhenNothingElseFits) {
  Offer other{.measures = {.state = State::factored}, .factor = 1.01, .predicted = 550, .other_training = true};
  TargetWorld world({as_it_is, int8, other});
  EXPECT_EQ(search(world, {.bytes = 650}).chosen()->candidate.changes, "activations in int8");
  EXPECT_EQ(search(world, {.bytes = 560}).chosen()->candidate.changes, "Adafactor");
}

TEST(MemoryTarget, ARunThatFailsIsPassedBy) {
  TargetWorld world({as_it_is, int8, recompute});
  world.offers[1].ms_per_sample = -1;
  const MemoryTargetReport report = search(world, {.bytes = 650});
  EXPECT_EQ(report.rungs[1].verdict, TargetVerdict::failed);
  EXPECT_EQ(report.rungs[1].note, "the loss became NaN at step 7.");
  EXPECT_EQ(report.chosen()->candidate.changes, "activation checkpointing");
  world.offers[0].ms_per_sample = -1;  // as it is it does not even run
  const MemoryTargetReport blind = search(world, {.bytes = 650});
  EXPECT_EQ(blind.chosen()->candidate.changes, "activation checkpointing");
  EXPECT_TRUE(std::isnan(blind.chosen()->time_over_start.ratio));
}

TEST(MemoryTarget, TimeAndSignalsEndIt) {
  TargetWorld world({as_it_is, int8, recompute});
  const MemoryTargetReport late = search(world, {.bytes = 650, .max_seconds = 1e-3});
  EXPECT_FALSE(late.certain);
  EXPECT_EQ(late.left, 2);
  EXPECT_EQ(late.rungs.size(), 1u);
  bool stop = false;
  const MemoryTargetReport stopped = search(
      world, {.bytes = 650}, [&] { return stop; }, [&](const MemoryTargetEvent& event) { stop |= event.finished; });
  EXPECT_TRUE(stopped.interrupted);
  EXPECT_EQ(stopped.rungs.at(0).peak_bytes, 1000) << "what was measured is there";
  EXPECT_THROW(search(world, {.bytes = 0}), c10::ValueError);
  EXPECT_THROW(search(world, {.bytes = 5, .pairs = 2}), c10::ValueError);
}

TEST(MemoryTarget, FullSizeIsMeasured) {
  TargetWorld world({as_it_is});
  const auto inner = world.bytes;
  world.bytes = [&](const Recipe* recipe) {
    EXPECT_EQ(recipe->image_size_start, 0);
    EXPECT_EQ(recipe->growth_epochs, 0);
    return inner(recipe);
  };
  EXPECT_TRUE(search(world, {.bytes = 1000}).chosen());
}

TEST(MemoryTarget, SurprisesAreSharedBetweenMeasures) {
  const TargetWorld world(
      {as_it_is, int8, small_state, state_and_int8, {.measures = {.accumulate = 4}, .factor = 1.15}});
  const auto offers = world.candidates();
  StepTimes times;
  EXPECT_TRUE(std::isnan(times.estimate_ms(offers[0])));
  times.learn(offers[0], 10);
  EXPECT_NEAR(times.estimate_ms(offers[1]), 11, 1e-9);
  times.learn(offers[1], 22);  // int8 takes twice the table's
  EXPECT_NEAR(times.estimate_ms(offers[3]), 22.4, 1e-9);
  times.learn(offers[3], 44.8);  // the rest of it is the state's
  EXPECT_NEAR(times.estimate_ms(offers[2]), 20.4, 1e-9);
  times.learn(offers[4], 4 * 11.5);
  PlanCandidate eight = offers[4];
  eight.measures.accumulate = 8;
  EXPECT_NEAR(times.estimate_ms(eight), 8 * 11.5, 1e-6) << "a doubling more";
  EXPECT_TRUE(adds_to(offers[3].measures, offers[1].measures));
  EXPECT_FALSE(adds_to(offers[1].measures, offers[2].measures));
  EXPECT_FALSE(adds_to(offers[1].measures, offers[1].measures));
}

TEST(MemoryTarget, CandidatesAreRecipesThatGoTogether) {
  Recipe recipe = digits_recipe();
  recipe.optimizer = "adamw";
  recipe.batch_size = 8;
  const auto candidates = candidates_in_own_process(recipe, 8);
  EXPECT_EQ(candidates[0].recipe, recipe);
  EXPECT_EQ(candidates[0].measures, MemoryOptions{});
  EXPECT_GT(candidates.size(), 50u);
  double last = 0;
  bool other = false, offloads = false;
  for (size_t i = 1; i < candidates.size(); ++i) {
    const PlanCandidate& candidate = candidates[i];
    EXPECT_NO_THROW(candidate.recipe.validate()) << candidate.changes;
    EXPECT_FALSE(candidate.recipe == recipe) << candidate.changes;
    EXPECT_FALSE(candidate.techniques.empty());
    EXPECT_GT(candidate.predicted_bytes, 0);
    EXPECT_EQ(candidate.recipe.batch_size * candidate.recipe.gradient_accumulation_steps, 8);
    if (candidate.other_training && !other) last = 0;
    other |= candidate.other_training;
    offloads |= !candidate.recipe.offload_folder.empty();
    EXPECT_EQ(candidate.other_training, other) << "those last";
    EXPECT_GE(expected_cost(candidate), last);
    last = expected_cost(candidate);
  }
  EXPECT_TRUE(other);
  EXPECT_TRUE(offloads || !std::filesystem::exists("/var/tmp"));
  recipe.optimizer = "sgd";
  recipe.momentum = 0;
  for (const PlanCandidate& candidate : plan_candidates(recipe, 8))
    EXPECT_EQ(candidate.measures.state, State::as_it_is) << "there is no state to make smaller";
}

TEST(MemoryTarget, PeaksAreAboveWhatWasThereBefore) {
  const auto peak_of = [] {
    const auto job = make_ladder_job(digits_recipe(), 1);
    job->run_steps(2);
    return job->take_peak_bytes();
  };
  const int64_t alone = peak_of();
  EXPECT_GT(alone, 1 << 16);
  const at::Tensor of_somebody_else = at::zeros({64 << 20});
  EXPECT_NEAR(static_cast<double>(peak_of()) / static_cast<double>(alone), 1, 0.05);
}

}  // namespace bellows::train
