#include "bellows/plan/candidates.h"
#include "bellows/plan/decision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/plan/dry_run.h"
#include "bellows/plan/step_model.h"

namespace bellows::train {

namespace {

Recipe recipe_for(const std::string& model, const std::string& optimizer = "adamw",
                  const std::string& precision = "fp32") {
  Recipe recipe;
  recipe.model = model;
  recipe.optimizer = optimizer;
  recipe.precision = precision;
  return recipe;
}

struct Configuration {
  Recipe recipe;
  StepSize size;
};

/// Bytes by the documents' formulas: weights, gradients and AdamW's state 16 a parameter; the rest grows with the batch.
struct Formula {
  double parameters, activations_a_sample;
  int64_t batch;
  int64_t operator()(const MemoryOptions& m) const {
    const double n = parameters, share = 1.0 / static_cast<double>(m.ranks);
    const double state = (m.state == MemoryOptions::State::eight_bit ? 2 : 8) * (m.stage > 0 ? share : 1);
    const double saved =
        (m.precision == MemoryOptions::Precision::bf16 ? 0.5 : 1) * (m.saved == MemoryOptions::Saved::recomputed  ? 0.2
                                                                     : m.saved == MemoryOptions::Saved::offloaded ? 0.02
                                                                                                                  : 1);
    const double copies = m.precision == MemoryOptions::Precision::bf16 ? 2 : 0;
    const double a = activations_a_sample * static_cast<double>(batch) / static_cast<double>(m.accumulate);
    const double weights = 4 * (m.stage > 2 ? share : 1), gradients = 4 * (m.stage > 1 ? share : 1);
    return static_cast<int64_t>(n * (weights + copies + gradients + state) + a * saved);
  }
};

struct DecisionCase {
  const char* what;
  double parameters, activations_a_sample;  // of a sample, in bytes
  Situation situation;
  const char* expected;
};

constexpr double million = 1e6, billion = 1e9;

Situation at(int64_t gigabytes, int64_t batch, int64_t ranks = 1, double step_s = 0.2, double bandwidth = 10e9,
             bool bf16 = true) {
  return {.capacity = gigabytes * 1'000'000'000,
          .batch = batch,
          .ranks = ranks,
          .bandwidth = bandwidth,
          .step_seconds = step_s,
          .bf16_arithmetic = bf16};
}

const DecisionCase decision_cases[] = {
    // It fits: keep it simple.
    {"small model, one device", 10 * million, 1e6, at(8, 32), "nothing; alone"},
    {"small model, steps of 2 ms: ranks only slow it down", million, 1e5, at(8, 32, 4, 0.002), "nothing; alone"},
    {"small model that could be sharded is not", 10 * million, 1e6, at(8, 32, 8, 0.05), "nothing; ddp"},
    {"ResNet-50 on eight devices", 25 * million, 90e6, at(16, 64, 8), "nothing; ddp"},
    {"fits just so", 100 * million, 10e6, at(2, 32), "nothing; alone"},
    {"BERT over a slow network", 110 * million, 50e6, at(16, 32, 4, 0.2, 1e9), "nothing; ddp with a hook"},
    {"no time known: DDP", 110 * million, 50e6, at(16, 32, 4, 0), "nothing; ddp"},
    // Activations are too many.
    {"half of them is enough", 110 * million, 200e6, at(6, 32), "bf16 autocast; alone"},
    {"an eighth of them", 110 * million, 500e6, at(5, 32), "bf16 autocast, gradient accumulation over 4 steps; alone"},
    {"no bf16 in this processor", 110 * million, 500e6, at(6, 32, 1, 0.2, 1e9, false),
     "gradient accumulation over 4 steps; alone"},
    {"the same on ranks stays DDP", 110 * million, 500e6, at(5, 32, 4),
     "bf16 autocast, gradient accumulation over 4 steps; ddp"},
    {"down to single samples", 110 * million, 6e9, at(6, 32),
     "bf16 autocast, gradient accumulation over 32 steps; alone"},
    // The state is too large, too.
    {"8-bit state", 400 * million, 200e6, at(6, 16),
     "bf16 autocast, gradient accumulation over 2 steps, 8-bit optimizer state; alone"},
    {"8-bit state, batch of one", 400 * million, 100e6, at(6, 1), "bf16 autocast, 8-bit optimizer state; alone"},
    {"one sample is too large: recompute rather than round the state", 110 * million, 12e9, at(4, 8),
     "bf16 autocast, gradient accumulation over 8 steps, activation checkpointing; alone"},
    {"small state and recompute", 400 * million, 7e9, at(6, 8),
     "bf16 autocast, gradient accumulation over 8 steps, 8-bit optimizer state, activation checkpointing; alone"},
    // Not on one device.
    {"ZeRO-1", billion, 100e6, at(12, 4, 8), "bf16 autocast, ZeRO-1 on 8 ranks; zero1"},
    {"ZeRO-2", billion, 100e6, at(8, 4, 8), "bf16 autocast, ZeRO-2 on 8 ranks; zero2"},
    {"ZeRO-3", billion, 100e6, at(5, 4, 8), "bf16 autocast, ZeRO-3 on 8 ranks; zero3"},
    {"offload is the last", 100 * million, 40e9, at(3, 1), "bf16 autocast, activation offloading; alone"},
    {"nothing helps", 10 * billion, 1e6, at(16, 4, 2),
     "bf16 autocast, gradient accumulation over 4 steps, 8-bit optimizer state, activation offloading, ZeRO-3 on 2 "
     "ranks; none"}};

}  // namespace

TEST(Plan, LawsAreFoundThroughTheHeapsRounding) {
  const std::vector<StepSize> sizes = {{2, 32}, {3, 32}, {2, 64}};
  const StepSize wanted{32, 512};
  const auto predicted = [&](auto bytes) {
    std::vector<int64_t> seen;
    seen.reserve(sizes.size());
    for (const StepSize& size : sizes) seen.push_back(bytes(size) + (bytes(size) > (128 << 10) ? 4000 : 24));
    const SizeLaw law = fit_size(sizes, seen);
    EXPECT_TRUE(law.fits) << law.to_string();
    return static_cast<double>(law.bytes(wanted)) / static_cast<double>(bytes(wanted));
  };
  EXPECT_NEAR(predicted([](StepSize) { return 1 << 20; }), 1, 0.01);
  EXPECT_NEAR(predicted([](StepSize s) { return 4 * 5000 * s.batch; }), 1, 0.01);
  EXPECT_NEAR(predicted([](StepSize s) { return 4 * 768 * s.batch * s.length; }), 1, 0.03);
  EXPECT_NEAR(predicted([](StepSize s) { return 48 * s.batch * s.length * s.length; }), 1, 0.01);
  EXPECT_NEAR(predicted([](StepSize s) { return (1 << 20) + 4 * 768 * s.batch * s.length; }), 1, 0.03);
  EXPECT_FALSE(fit_size(sizes, {1 << 20, 1 << 19, 3 << 20}).fits);
}

/// Some kernels copy a weight into another layout, but only for some sizes of the batch.
TEST(Plan, CopiesOfWeightsDoNotGrowWithTheBatch) {
  constexpr int64_t weight_bytes = 1 << 20;
  const auto step = [](int64_t batch, const std::vector<int64_t>& temporaries) {
    RecordedStep made{.size = {batch, 1}};
    made.timeline.tensors.push_back(
        {.bytes = weight_bytes, .kind = inspect::TensorKind::weight, .name = "conv.weight"});
    for (const int64_t bytes : temporaries)
      made.timeline.tensors.push_back(
          {.bytes = bytes, .op = "aten::convolution", .module = "conv", .born = 0, .died = 1});
    return made;
  };
  const StepModel model({step(2, {}), step(3, {weight_bytes, 3000})});
  EXPECT_EQ(model.at({60, 1}).tensors[1].bytes, weight_bytes);
  EXPECT_EQ(model.at({60, 1}).tensors[2].bytes, 60'000) << "not a copy of the weight";
  EXPECT_FALSE(model.laws()[2].fits);
}

TEST(Plan, PredictsStepsThatWereNotTaken) {
  const std::vector<Configuration> configurations = {{recipe_for("mlp", "sgd"), {512, 0}},
                                                     {recipe_for("digits_resnet"), {64, 0}},
                                                     {recipe_for("bert-20m", "adamw", "bf16"), {6, 72}},
                                                     {recipe_for("gpt2"), {4, 80}},
                                                     {recipe_for("encoder_decoder"), {16, 13}}};
  for (const auto& [recipe, size] : configurations) {
    const MemoryPlan plan = plan_memory(recipe, size);
    const auto measured = static_cast<double>(DryRun(recipe).measure(size));
    EXPECT_NEAR(static_cast<double>(plan.peak_bytes()) / measured, 1, 0.05) << recipe.model << "\n"
                                                                            << plan.step.to_string();
    for (const StepSize& small : plan.rehearsed) EXPECT_LT(small.batch, size.batch);
  }
}

TEST(Plan, AModelOfOneSizeIsRehearsedAtThatSize) {
  models::register_model(
      {.name = "flat_96", .description = "", .input_shape = {1, 96, 96}, .make = [](int64_t classes, int64_t channels) {
         return Model::of(torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(channels * 96 * 96, classes)),
                          "flat_96");
       }});
  const Recipe recipe = recipe_for("flat_96");
  const MemoryPlan plan = plan_memory(recipe, {64, 0});
  EXPECT_THAT(plan.rehearsed, testing::ElementsAre(StepSize{2, 96}, StepSize{3, 96}));
  const auto measured = static_cast<double>(DryRun(recipe).measure({64, 0}));
  EXPECT_NEAR(static_cast<double>(plan.peak_bytes()) / measured, 1, 0.05);
  EXPECT_THROW(plan_memory(recipe, {64, 128}), c10::Error) << "it takes no others";
}

// Inception-v3 accepts small images only in evaluation mode, without its auxiliary output. Its dry runs are training
// steps.
TEST(Plan, AuxiliaryOutputsDecideTheSmallestImages) {
  const MemoryPlan plan = plan_memory(recipe_for("inception_v3", "sgd"), {.batch = 4});
  EXPECT_EQ(plan.parameters, 27'161'264 - 990 * (2049 + 769)) << "10 instead of 1,000 classes, in both heads";
  EXPECT_GT(plan.peak_bytes(), 4 * 2 * plan.parameters) << "weights, gradients and activations";
}

TEST(Plan, MeasuresAgreeWithPlansOfTheirOwn) {
  const StepSize size{64, 26};
  const Recipe recipe = recipe_for("encoder_decoder");
  MemoryPlan plain = plan_memory(recipe, size);
  EXPECT_LT(peak_with(plain, {.precision = MemoryOptions::Precision::bf16}), plain.peak_bytes())
      << "by the formula alone";
  rehearse_bf16(plain);
  const auto ratio = [&](const MemoryOptions& measures, const char* setting, StepSize of) {
    Recipe own = recipe;
    own.set(setting);
    if (own.precision == "bf16") own.amp_level = "O2";
    return static_cast<double>(peak_with(plain, measures)) / static_cast<double>(plan_memory(own, of).peak_bytes());
  };
  using State = MemoryOptions::State;
  EXPECT_NEAR(ratio({.precision = MemoryOptions::Precision::bf16_weights}, "precision=bf16", size), 1, 0.03);
  EXPECT_NEAR(ratio({.state = State::eight_bit}, "optimizer_state=int8", size), 1, 0.03);
  EXPECT_NEAR(ratio({.state = State::four_bit}, "optimizer_state=int4", size), 1, 0.03);
  EXPECT_NEAR(ratio({.saved = MemoryOptions::Saved::in_int8}, "activation_dtype=int8", size), 1, 0.1);
  EXPECT_NEAR(ratio({.saved = MemoryOptions::Saved::in_int4}, "activation_dtype=int4", size), 1, 0.1);
  EXPECT_NEAR(ratio({.state = State::factored}, "optimizer=adafactor", size), 1, 0.03);
  EXPECT_NEAR(ratio({.accumulate = 4}, "gradient_accumulation_steps=4", {16, 26}), 1, 0.03);
  EXPECT_NEAR(ratio({.in_backward = true}, "optimizer_in_backward=true", size), 1, 0.03);
  EXPECT_EQ(peak_with(plain, {}), plain.peak_bytes());
  for (const PredictedTechnique& row : predict_techniques(plain)) {
    EXPECT_LE(static_cast<double>(row.peak_bytes), 1.05 * static_cast<double>(plain.peak_bytes())) << row.name;
    EXPECT_LE(row.cost.size(), 27u) << row.cost << " does not fit into 80 columns";
  }
}

TEST(Plan, DecidesAsTheDocumentsDo) {
  static_assert(std::size(decision_cases) == 21);
  for (const DecisionCase& c : decision_cases) {
    Situation situation = c.situation;
    situation.gradient_bytes = static_cast<int64_t>(4 * c.parameters);
    const Decision decision = decide(situation, Formula{c.parameters, c.activations_a_sample, situation.batch});
    EXPECT_EQ(decision.to_string(), c.expected) << c.what;
    EXPECT_GE(decision.reasons.size(), 1u) << c.what;
    EXPECT_EQ(decision.fits, decision.strategy != "none") << c.what;
  }
}

TEST(Plan, CheapestThatFitsIsARecipeThatFits) {
  const Recipe recipe = recipe_for("digits_resnet");
  const MemoryPlan plan = plan_memory(recipe, {64, 0});
  const int64_t bytes = plan.peak_bytes() / 2;
  const auto fitting = cheapest_that_fits(plan, bytes);
  ASSERT_TRUE(fitting);
  EXPECT_LE(DryRun(fitting->recipe).measure({fitting->recipe.batch_size, 0}, 3), bytes * 21 / 20);
  EXPECT_EQ(fitting->recipe.batch_size * fitting->recipe.gradient_accumulation_steps, 64);
  EXPECT_EQ(Recipe::parse(fitting->recipe.to_yaml()), fitting->recipe);
  EXPECT_FALSE(cheapest_that_fits(plan, 1000));
  EXPECT_TRUE(cheapest_that_fits(plan, plan.peak_bytes())->recipe.gradient_accumulation_steps <= 1);
}

TEST(Plan, AtNearlyEqualTimesTheOneThatRoundsLessComesFirst) {
  const auto cost = [](const MemoryOptions& measures) {
    return expected_cost({.measures = measures, .time_factor = time_factor(measures, true)});
  };
  using Saved = MemoryOptions::Saved;
  using State = MemoryOptions::State;
  EXPECT_LT(time_factor({.saved = Saved::in_int4}, true), time_factor({.saved = Saved::in_int8}, true));
  EXPECT_LT(cost({.saved = Saved::in_int8}), cost({.saved = Saved::in_int4})) << "8 bits before 4";
  EXPECT_LT(time_factor({.saved = Saved::in_bf16}, true), time_factor({.saved = Saved::half_recomputed}, true));
  EXPECT_LT(cost({.saved = Saved::half_recomputed}), cost({.saved = Saved::in_bf16})) << "the same bits before others";
  EXPECT_LT(cost({.state = State::eight_bit, .accumulate = 16}), cost({.state = State::four_bit, .accumulate = 8}));
  EXPECT_LT(cost({.saved = Saved::in_int8}), cost({.saved = Saved::recomputed})) << "but not where it costs time";
  EXPECT_EQ(roughness({.saved = Saved::recomputed, .accumulate = 4, .in_backward = true}), 0);
}

TEST(Plan, SaysWhatCannotBePlanned) {
  EXPECT_THROW(plan_memory(recipe_for("bert-20m"), {0, 16}), c10::ValueError);
  EXPECT_THROW(plan_memory(recipe_for("bert-20m"), {6, 16}, 4), c10::ValueError);
  EXPECT_THROW(plan_memory(recipe_for("bert-20m"), {4, 5000}), c10::Error) << "more tokens than it has positions";
  EXPECT_THROW(plan_memory(recipe_for("no such model"), {4, 16}), c10::ValueError);
  for (const char* mesh : {"tensor: 2", "context: 2"}) {
    Recipe divided = recipe_for("bert-20m");
    divided.mesh = mesh;
    EXPECT_THROW(plan_memory(divided, {4, 16}), c10::ValueError) << mesh;
  }
}

}  // namespace bellows::train
