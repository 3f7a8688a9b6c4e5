#include "bellows/plan/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "bellows/plan/context_strategy.h"
#include "bellows/plan/link_bandwidth.h"
#include "bellows/plan/pipeline_strategy.h"

namespace bellows::train {

namespace {

using ::testing::HasSubstr;

constexpr int64_t mib = 1 << 20;
constexpr int64_t gradient_mib = 400, first_ranks = 2;

/// A step of 400 MiB of weights, 400 MiB of gradients, 800 MiB of AdamW's state, and 30 MiB of activations per sample
/// in four blocks. All of them are alive at the peak.
inspect::TensorTimeline made_step(int64_t batch) {
  using inspect::TensorKind;
  inspect::TensorTimeline step{.events = 200};
  const auto add = [&step](inspect::TensorLife tensor) { step.tensors.push_back(std::move(tensor)); };
  for (int64_t i = 0; i < 8; ++i) {
    const std::string name = "weight" + std::to_string(i);
    add({.bytes = 50 * mib, .kind = TensorKind::weight, .name = name, .died = step.events});
    add({.bytes = 100 * mib, .kind = TensorKind::optimizer, .name = "moments of " + name, .died = step.events});
    add({.bytes = 50 * mib, .kind = TensorKind::gradient, .name = name, .born = 100 + i, .died = step.events});
  }
  for (int64_t block = 0; block < 4; ++block) {
    for (int64_t i = 0; i < 3; ++i) {
      add({.bytes = batch * 5 * mib / 2,
           .kind = TensorKind::activation,
           .element_bytes = 4,
           .op = "op" + std::to_string(i),
           .module = "layer." + std::to_string(block),
           .phase = "forward",
           .born = 10 * block + i,
           .died = 190 - 20 * block - i});
    }
  }
  return step;
}

MemoryPlan made_plan() {
  const StepSize size{8, 1};
  Recipe recipe;
  recipe.optimizer = "adamw";
  recipe.precision = "fp32";
  std::vector<RecordedStep> steps(2);
  steps[0] = {.size = {2, 1}, .timeline = made_step(2)};
  steps[1] = {.size = {3, 1}, .timeline = made_step(3)};
  StepModel model(std::move(steps));
  inspect::TensorTimeline step = model.at(size);
  const auto peak = step.peak();
  return {.recipe = recipe,
          .size = size,
          .ranks = first_ranks,
          .parameters = gradient_mib * mib / 4,
          .model = std::move(model),
          .step = std::move(step),
          .peak = peak};
}

StrategyChoice choose_within(const MemoryPlan& plan, int64_t capacity, int64_t ranks = first_ranks, double link = 0) {
  const Situation situation{.capacity = capacity,
                            .batch = plan.size.batch,
                            .ranks = ranks,
                            .gradient_bytes = gradient_mib * mib,
                            .step_seconds = 0.5,
                            .bf16_arithmetic = false};
  return choose_strategy(plan, situation, ranks, link);
}

constexpr int64_t enough = 100'000 * mib;

/// The row that the choice must be: the first one that fits and works with the recipe.
size_t first_fitting(const StrategyChoice& choice) {
  size_t i = 0;
  while (i < choice.rows.size() && !(choice.rows[i].fits && choice.rows[i].needs.empty())) ++i;
  return i;
}

}  // namespace

TEST(Strategy, ChoosesTheLowestStageThatFits) {
  const MemoryPlan plan = made_plan();
  const StrategyChoice all = choose_within(plan, enough);
  const int64_t expected_mib[] = {1840, 1440, 1340, 1190};
  const char* titles[] = {"DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"};
  const char* values[] = {"ddp", "zero1", "zero2", "zero3"};
  ASSERT_GT(all.rows.size(), 4u);
  EXPECT_EQ(all.chosen, 0u) << "it fits, so ZeRO is not needed";
  EXPECT_THAT(all.reason, HasSubstr("DDP needs 1.8 GiB per rank and fits"));
  for (size_t stage = 0; stage < 4; ++stage) {
    const StrategyRow& row = all.rows[stage];
    EXPECT_NEAR(static_cast<double>(row.bytes_per_rank) / mib, expected_mib[stage], 10) << titles[stage];
    EXPECT_EQ(row.title(), titles[stage]);
    EXPECT_EQ(row.data_parallel, values[stage]);
    const StrategyChoice tight = choose_within(plan, row.bytes_per_rank);
    EXPECT_EQ(tight.chosen, stage) << tight.reason;
    EXPECT_THAT(tight.reason, HasSubstr(titles[stage]));
    EXPECT_EQ(tight.needed_ranks, 0);
  }
}

TEST(Strategy, MoreRanksShareMore) {
  const MemoryPlan plan = made_plan();
  const StrategyChoice two = choose_within(plan, enough, 2), four = choose_within(plan, enough, 4);
  EXPECT_EQ(two.rows[0].bytes_per_rank, four.rows[0].bytes_per_rank);
  EXPECT_NEAR(static_cast<double>(two.rows[1].bytes_per_rank - four.rows[1].bytes_per_rank) / mib, 200, 5);
  EXPECT_NEAR(static_cast<double>(two.rows[3].bytes_per_rank - four.rows[3].bytes_per_rank) / mib, 400, 5);
}

TEST(Strategy, AddsOneTechniqueAndThenSeveral) {
  const MemoryPlan plan = made_plan();
  const StrategyChoice one = choose_within(plan, choose_within(plan, enough).rows[3].bytes_per_rank - 1);
  ASSERT_TRUE(one.chosen) << one.reason;
  EXPECT_EQ(*one.chosen, first_fitting(one));
  EXPECT_GT(*one.chosen, 3u);
  EXPECT_EQ(one.rows[*one.chosen].data_parallel, "zero3");
  EXPECT_THAT(one.rows[*one.chosen].techniques, ::testing::Not(HasSubstr(",")));
  EXPECT_THAT(one.reason, HasSubstr("Even ZeRO-3 needs"));
  EXPECT_THAT(one.reason, HasSubstr("With " + one.rows[*one.chosen].techniques));
  int64_t least = enough;
  for (const StrategyRow& row : one.rows) {
    least = std::min(least, row.bytes_per_rank);
    EXPECT_LE(row.measures.shrink, 1) << "the same samples";
    EXPECT_NE(row.measures.state, MemoryOptions::State::factored) << "the same optimizer";
  }
  const StrategyChoice several = choose_within(plan, least - 20 * mib);
  ASSERT_TRUE(several.chosen) << several.reason;
  EXPECT_EQ(*several.chosen, several.rows.size() - 1);
  EXPECT_THAT(several.rows.back().techniques, HasSubstr(", "));
  EXPECT_LE(several.rows.back().bytes_per_rank, several.capacity);
}

TEST(Strategy, TensorParallelismOfModelsOfKnownSize) {
  MemoryPlan plan = made_plan();
  plan.model_size = {.layers = 4, .heads = 4, .head_width = 64, .inner = 1024};
  plan.size.length = 128;
  const StrategyChoice choice = choose_within(plan, enough, 2, 1e9);
  const auto row = std::find_if(choice.rows.begin(), choice.rows.end(), [](const auto& r) { return !r.mesh.empty(); });
  ASSERT_NE(row, choice.rows.end());
  EXPECT_EQ(row->title(), "tensor parallelism");
  EXPECT_EQ(row->data_parallel, "ddp");
  EXPECT_EQ(row->mesh, "tensor: 2");
  // Half of 1600 MiB, and for the 16 samples of both ranks (10 + 34 / 2) / 44 of 480 MiB, with 5 · 4 · 128 / 256 = 10.
  EXPECT_NEAR(static_cast<double>(row->bytes_per_rank) / mib, 800 + 480 * 27.0 / 44, 10);
  EXPECT_EQ(row->bytes_sent, (4 * 4 + 2) * int64_t{16} * 128 * 256 * 4);
  EXPECT_DOUBLE_EQ(row->exchange_seconds, static_cast<double>(row->bytes_sent) / 1e9);
  EXPECT_EQ(choice.chosen, 0u) << "DDP fits";
  for (const StrategyRow& three : choose_within(plan, enough, 3).rows)
    EXPECT_TRUE(three.mesh.empty() || three.mesh == "pipeline: 3")  // nor 128 tokens into six chunks
        << three.mesh << ": three ranks do not divide four heads";
  plan.recipe.quantize = "int8";
  for (const StrategyRow& quantized : choose_within(plan, enough, 2).rows) EXPECT_EQ(quantized.mesh, "");
  plan.recipe.quantize = "none";
  plan.recipe.gradient_accumulation_dtype = "fp32";  // several ranks refuse it
  const StrategyChoice refused = choose_within(plan, enough, 2);
  EXPECT_FALSE(refused.chosen) << refused.reason;
  const StrategyRow& tensor = refused.rows[refused.rows.size() - 2];
  EXPECT_EQ(tensor.mesh, "tensor: 2");
  EXPECT_EQ(tensor.needs, "gradient_accumulation_dtype: auto");
}

TEST(Strategy, ContextParallelismOfLongSequences) {
  MemoryPlan plan = made_plan();
  plan.model_size = {.layers = 4, .heads = 4, .head_width = 64, .inner = 1024, .words = 1000};
  plan.size = {64, 128};
  const Situation situation{.capacity = enough, .gradient_bytes = gradient_mib * mib, .step_seconds = 0.5};
  const auto row = context_strategy(plan, situation, 2, 1e9);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->mesh, "context: 2");
  EXPECT_EQ(row->title(), "context parallelism with gradient accumulation over 2 steps");
  // 1600 MiB, half of 64 · 30 MiB, and one of the gradients that are added to those of earlier batches.
  EXPECT_NEAR(static_cast<double>(row->bytes_per_rank) / mib, 1600 + 960 + 50, 10);
  // Keys, values and their gradients in 4 layers: 3 exchanges of 2 · 64 · 128 · 256 numbers. The output is gathered.
  EXPECT_EQ(row->bytes_sent, (4 * 3 + 1) * int64_t{2} * 64 * 128 * 256 * 4 + gradient_mib * mib);
  EXPECT_DOUBLE_EQ(row->exchange_seconds, static_cast<double>(row->bytes_sent) / 1e9);
  EXPECT_DOUBLE_EQ(row->compute_seconds, 0.5);
  plan.recipe.model = "gpt2";  // each rank computes the head for all tokens
  EXPECT_DOUBLE_EQ(context_strategy(plan, situation, 2, 0)->compute_seconds, 0.5 * (1 + 1000.0 / (4 * 3328 + 1000)));
  EXPECT_FALSE(context_strategy(plan, situation, 3, 0)) << "6 does not divide 128";
  plan.recipe.gradient_compression = "bf16";  // refused by ZeRO-2 and ZeRO-3, and if the model is divided
  const StrategyChoice choice = choose_within(plan, 2700 * mib);
  ASSERT_TRUE(choice.chosen) << choice.reason;
  EXPECT_EQ(choice.rows[*choice.chosen].mesh, "context: 2");
  EXPECT_THAT(choice.reason,
              HasSubstr("Context parallelism divides the activations of each sequence and needs 2.5 GiB"));
  EXPECT_THAT(choice.reason, HasSubstr("Set mesh: {context: 2}, batch_size: 64 and gradient_accumulation_steps: 2."));
  plan.recipe.gradient_compression = "none";
  plan.size.length = 4096;
  std::vector<std::string> meshes;
  for (const StrategyRow& one : choose_within(plan, enough).rows) {
    if (!one.mesh.empty()) meshes.push_back(one.mesh);
  }
  EXPECT_EQ(meshes, (std::vector<std::string>{"context: 2", "tensor: 2", "pipeline: 2"})) << "by the bytes they send";
  plan.recipe.quantize = "int8";
  EXPECT_FALSE(context_strategy(plan, situation, 2, 0));
}

TEST(Strategy, StatesHowManyRanksWouldBeEnough) {
  MemoryPlan plan = made_plan();
  plan.recipe.optimizer = "sgd";
  plan.recipe.momentum = 0;  // no state, which could be offloaded
  const StrategyChoice more = choose_within(plan, 540 * mib);
  EXPECT_FALSE(more.chosen) << more.reason;
  EXPECT_EQ(more.needed_ranks, 16) << "ZeRO-3 needs 590 MiB on 8 ranks and 490 MiB on 16";
  EXPECT_EQ(more.needed, "ZeRO-3");
  EXPECT_THAT(more.reason, HasSubstr("ZeRO-3 would fit on 16 ranks"));
  EXPECT_TRUE(choose_within(plan, 540 * mib, 16).chosen);
  const StrategyChoice smaller = choose_within(plan, 300 * mib);
  EXPECT_GT(smaller.needed_ranks, 16);
  EXPECT_THAT(smaller.needed, HasSubstr("ZeRO-3 with ")) << "ranks do not share activations";
  const StrategyChoice never = choose_within(plan, mib);
  EXPECT_FALSE(never.chosen);
  EXPECT_EQ(never.needed_ranks, 0);
  EXPECT_THAT(never.reason, HasSubstr("More ranks are not enough"));
}

TEST(Strategy, OffloadsShardsIfNothingElseFits) {
  MemoryPlan plan = made_plan();
  const StrategyChoice choice = choose_within(plan, 540 * mib);
  ASSERT_TRUE(choice.chosen) << choice.reason;
  const StrategyRow& row = choice.rows[*choice.chosen];
  EXPECT_TRUE(row.measures.offloaded_shards);
  EXPECT_EQ(row.data_parallel, "zero3");
  EXPECT_LE(row.bytes_per_rank, choice.capacity);
  EXPECT_THAT(row.title(), HasSubstr("offloaded shards"));
  EXPECT_THAT(choice.reason, HasSubstr("no technique that keeps the shards in memory is enough"));
  EXPECT_THAT(choice.reason, HasSubstr("offload_parameters: file, offload_state: file and offload_shard_folder"));
  for (size_t i = 0; i < *choice.chosen; ++i) EXPECT_FALSE(choice.rows[i].fits && choice.rows[i].needs.empty()) << i;
  const StrategyChoice wide = choose_within(plan, enough);
  for (const StrategyRow& other : wide.rows) EXPECT_FALSE(other.measures.offloaded_shards) << other.title();
  plan.recipe.device = "cuda";
  const StrategyChoice device = choose_within(plan, 540 * mib);
  ASSERT_TRUE(device.chosen) << device.reason;
  EXPECT_THAT(device.reason, HasSubstr("Set offload_parameters: host and offload_state: host."));
}

TEST(Strategy, SendsTheBytesOfARing) {
  EXPECT_EQ(bytes_sent_per_step(0, 2, 1000), 1000);
  EXPECT_EQ(bytes_sent_per_step(0, 4, 1000), 1500);
  EXPECT_EQ(bytes_sent_per_step(1, 2, 1000), 1500);
  EXPECT_EQ(bytes_sent_per_step(1, 4, 1000), 2250);
  EXPECT_EQ(bytes_sent_per_step(2, 2, 1000), 1000);
  EXPECT_EQ(bytes_sent_per_step(2, 4, 1000), 1500);
  EXPECT_EQ(bytes_sent_per_step(3, 2, 1000), 1500);
  EXPECT_EQ(bytes_sent_per_step(3, 4, 1000), 2250);
  EXPECT_EQ(bytes_sent_per_step(3, 4, 1000, 1, false), 1500) << "parameters stay between forward and backward";
  EXPECT_EQ(bytes_sent_per_step(1, 4, 1000, 4), 2250) << "gradients are sent once per step";
  EXPECT_EQ(bytes_sent_per_step(2, 4, 1000, 4), 3750);
  EXPECT_EQ(bytes_sent_per_step(3, 4, 1000, 4), 9000);
  EXPECT_THROW(bytes_sent_per_step(4, 2, 1000), c10::ValueError);
  const StrategyChoice choice = choose_within(made_plan(), enough, 4);
  for (int stage = 0; stage < 4; ++stage)
    EXPECT_EQ(choice.rows[static_cast<size_t>(stage)].bytes_sent, bytes_sent_per_step(stage, 4, gradient_mib * mib));
}

TEST(Strategy, DividesBytesByTheBandwidth) {
  const MemoryPlan plan = made_plan();
  const StrategyChoice known = choose_within(plan, enough, 4, 1e9), unknown = choose_within(plan, enough, 4);
  for (const StrategyRow& row : known.rows)
    EXPECT_DOUBLE_EQ(row.exchange_seconds, static_cast<double>(row.bytes_sent) / 1e9) << row.title();
  for (const StrategyRow& row : unknown.rows) EXPECT_EQ(row.exchange_seconds, 0) << row.title();
  EXPECT_DOUBLE_EQ(known.rows[0].compute_seconds, 0.5);
  EXPECT_DOUBLE_EQ(known.rows[3].compute_seconds, 0.5);
  for (size_t i = 4; i < known.rows.size(); ++i) EXPECT_GT(known.rows[i].compute_seconds, 0.5) << "no bf16 arithmetic";
}

/// The plan of a recipe with ZeRO has less than the recorded step, and DDP must not.
TEST(Strategy, DoesNotDependOnTheRecipesStage) {
  MemoryPlan plan = made_plan();
  const StrategyChoice before = choose_within(plan, enough);
  plan.recipe.data_parallel = "zero1";
  plan.saved_by_sharding = 400 * mib;
  const StrategyChoice after = choose_within(plan, enough);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(after.rows[i].bytes_per_rank, before.rows[i].bytes_per_rank);
}

TEST(Strategy, SkipsStagesThatTheRecipeRulesOut) {
  MemoryPlan plan = made_plan();
  const int64_t bytes = choose_within(plan, enough).rows[3].bytes_per_rank;
  plan.recipe.gradient_compression = "int8";
  const StrategyChoice choice = choose_within(plan, bytes);
  EXPECT_FALSE(choice.chosen);
  EXPECT_EQ(choice.rows.size(), 4u);
  EXPECT_EQ(choice.rows[1].needs, "");
  EXPECT_EQ(choice.rows[2].needs, "gradient_compression: none");
  EXPECT_TRUE(choice.rows[3].fits);
  EXPECT_THAT(choice.reason, HasSubstr("ZeRO-3 is predicted only with gradient_compression: none"));
}

TEST(Strategy, ReportsInvalidArguments) {
  EXPECT_THROW(choose_within(made_plan(), enough, 1), c10::ValueError);
  EXPECT_THROW(choose_within(made_plan(), enough, 2, -1), c10::ValueError);
  EXPECT_THROW(measure_link(1), c10::ValueError);
  EXPECT_THROW(measure_link(most_measured_ranks + 1), c10::ValueError);
}

TEST(Strategy, MeasuresTheLinkBetweenRanks) {
  for (const int ranks : {2, 4}) {
    const double bytes_per_second = measure_link(ranks);
    EXPECT_TRUE(std::isfinite(bytes_per_second)) << ranks;
    EXPECT_GT(bytes_per_second, 0) << ranks;
  }
}

TEST(Strategy, PipelinesDivideTheParametersAndKeepMicroBatchesInFlight) {
  MemoryPlan plan = made_plan();
  const Situation situation{.capacity = enough, .step_seconds = 0.5};
  EXPECT_FALSE(estimate_pipeline(plan, situation, 2, 0));  // the size of the model is unknown
  plan.model_size = {.layers = 4, .heads = 4, .head_width = 16, .inner = 256, .words = 1, .positions = 1};
  const auto row = estimate_pipeline(plan, situation, 2, 1e9);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->mesh, "pipeline: 2");
  EXPECT_EQ(row->title(), "pipeline parallelism");
  // 16 samples in 8 micro-batches of 2: half of 1600 MiB, and the activations of two micro-batches in half of the layers.
  EXPECT_NEAR(static_cast<double>(row->bytes_per_rank) / mib, 800 + 2 * 30, 20);
  EXPECT_NEAR(row->compute_seconds, 0.5 * 9 / 8, 1e-9);
  EXPECT_EQ(row->bytes_sent, 16 * 64 * 4);
  EXPECT_FALSE(estimate_pipeline(plan, situation, 5, 0));  // more ranks than layers
}

}  // namespace bellows::train
