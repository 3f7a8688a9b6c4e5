#include "bellows/models/model_skeleton.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <optional>

#include "bellows/plan/depth_extrapolation.h"
#include "bellows/plan/plan.h"
#include "bellows/tap/allocator.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using models::ModelSize;

/// A config.json in a folder of this program's own.
std::string config_file(const std::string& name, const std::string& fields) {
  static const TemporaryFolder folder;
  const std::string path = folder / (name + ".json");
  std::ofstream(path) << "{" << fields << "}";
  return path;
}

std::string gpt_config(const std::string& name, int64_t layers, int64_t width, int64_t heads, int64_t tokens) {
  return config_file(
      name, c10::str(R"("model_type": "gpt2", "n_layer": )", layers, R"(, "n_embd": )", width, R"(, "n_head": )", heads,
                     R"(, "vocab_size": )", tokens, R"(, "n_positions": 256)"));
}

Recipe recipe_with(const std::string& model, const std::vector<std::string>& settings) {
  Recipe recipe;
  recipe.model = model;
  for (const std::string& setting : settings) recipe.set(setting);
  return recipe;
}

/// The most bytes that lived while `run` did, beside those before.
template <class Run>
int64_t own_peak(const Run& run) {
  tap::install_cpu_allocator();
  tap::reset_cpu_allocation_peak();
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  run();
  return tap::cpu_allocation_counters().peak_bytes - before;
}

/// What lives when a tensor was just made, one after another.
std::vector<int64_t> bytes_at_births(const inspect::TensorTimeline& step) {
  const std::vector<int64_t> bytes = step.bytes_over_time();
  std::vector<int64_t> result = {bytes.front()};
  for (const inspect::TensorLife& tensor : step.tensors) {
    if (tensor.born >= 0) result.push_back(bytes[tensor.born + 1]);
  }
  return result;
}

/// What was there before in alphabetical order, then what the step made, in its own.
std::vector<std::string> names_of(const inspect::TensorTimeline& step) {
  std::vector<std::string> before, made;
  for (const inspect::TensorLife& tensor : step.tensors)
    (tensor.born < 0 ? before : made).push_back(tensor.name + " in " + tensor.module);
  std::ranges::sort(before);
  before.insert(before.end(), made.begin(), made.end());
  return before;
}

}  // namespace

/// What a step allocates, in its order, is what the deep model's own step allocates, and as much lives beside it.
TEST(Sketch, ThreeLayersGrowIntoTheDeepModelsOwnStep) {
  const std::string path = gpt_config("deep", 7, 64, 4, 300);
  const std::vector<std::vector<std::string>> settings = {
      {"optimizer=adamw"},
      {"optimizer=adamw", "recompute=blocks"},
      {"optimizer=lion", "precision=bf16", "amp_level=O2", "ema_decay=0.9"},
      {"optimizer=adamw", "precision=bf16", "max_grad_norm=1"},
      {"optimizer=sgd", "gradient_accumulation_steps=4"},
      {"optimizer=adamw", "optimizer_state=int8", "activation_dtype=int8"},
      {"optimizer=adam", "optimizer_impl=loop"}};
  for (const auto& setting : settings) {
    const Recipe recipe = recipe_with(path, setting);
    SCOPED_TRACE(testing::PrintToString(setting));
    const ModelSize full = dry_run_entry(recipe).model_size(300);
    ModelSize three = full;
    three.layers = 3;
    const StepSize size{2, 24};
    const inspect::TensorTimeline real = DryRun(recipe, full).record(size);
    const ExtrapolatedStep grown = extrapolate_depth(DryRun(recipe, three).record(size), full.layers);
    EXPECT_EQ(grown.like.size(), grown.step.tensors.size());
    const std::vector<int64_t> expected = bytes_at_births(real), got = bytes_at_births(grown.step);
    ASSERT_EQ(got.size(), expected.size());
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) / static_cast<double>(expected[i]) - 1));
    EXPECT_LT(worst, 0.005) << "the heap's rounding, of blocks of 16 KB";
    EXPECT_EQ(names_of(grown.step), names_of(real));
  }
}

TEST(Sketch, ShapesOfParametersAreTheLargeModels) {
  for (const char* name : {"gpt2", "bert-base", "distilbert-base"}) {
    const models::ModelEntry entry = dry_run_entry(recipe_with(name, {}));
    const auto skeleton = models::model_skeleton(entry);
    ASSERT_TRUE(skeleton) << name;
    EXPECT_LT(skeleton->small.parameters(), 0.4 * skeleton->full.parameters()) << name;
    std::vector<NamedShapes> others;
    for (const models::ModelSkeleton::Other& other : skeleton->others)
      others.push_back(DryRun(recipe_with(name, {}), other.model_size).parameter_shapes());
    int64_t elements = 0, expected = 0;
    for (const Shape& shape :
         full_shapes(*skeleton, DryRun(recipe_with(name, {}), skeleton->small).parameter_shapes(), others))
      elements += shape.count * shape.elements();
    for (const at::Tensor& parameter : entry.make(10, entry.input_shape[0]).parameters()) expected += parameter.numel();
    EXPECT_EQ(elements, expected) << name;
  }
  EXPECT_FALSE(models::model_skeleton(dry_run_entry(recipe_with("resnet18", {}))));
}

/// Fewer heads and a smaller inner width, too: three layers of full width would be 38 million parameters.
TEST(Sketch, PlansAWideModelFromANarrowOne) {
  const Recipe recipe = recipe_with(gpt_config("wide", 4, 1024, 16, 5000), {"optimizer=adamw"});
  const StepSize size{4, 96};
  const MemoryPlan plan = plan_memory(recipe, size);
  EXPECT_LT(plan.small_model_size.heads, 16);
  EXPECT_LT(plan.small_model_size.inner, 4096);
  const auto measured = static_cast<double>(DryRun(recipe).measure(size));
  EXPECT_NEAR(static_cast<double>(plan.peak_bytes()) / measured, 1, 0.05) << plan.step.to_string();
  EXPECT_TRUE(plan.unfitted.empty());
}

TEST(Sketch, PlanningBertLargeTakesLessThanAQuarterOfItsWeightsGradientsAndState) {
  const std::string path =
      config_file("bert_large", R"("model_type": "bert", "num_hidden_layers": 24, "hidden_size": 1024,
                                   "num_attention_heads": 16, "intermediate_size": 4096)");
  std::optional<MemoryPlan> plan;
  const int64_t peak = own_peak([&] { plan = plan_memory(recipe_with(path, {"optimizer=adamw"}), {32, 512}); });
  EXPECT_EQ(plan->parameters, 335'141'888 + 10 * 1025);
  EXPECT_LT(peak, 16 * plan->parameters / 4) << "weights, gradients, two moments";
  EXPECT_GT(plan->peak_bytes(), 16 * plan->parameters);
}

TEST(Sketch, AModelThatNoMachineHoldsIsPlannedOrRefused) {
  const auto began = std::chrono::steady_clock::now();
  std::optional<MemoryPlan> plan;
  const int64_t peak = own_peak([&] {
    plan = plan_memory(recipe_with(gpt_config("absurd", 200, 16384, 128, 50257), {"optimizer=adamw"}), {8, 128});
  });
  EXPECT_LT(peak, 1'000'000'000);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(120));
  const double w = 16384, parameters = 200 * (12 * w * w + 13 * w) + (50257 + 256 + 2) * w;
  EXPECT_EQ(static_cast<double>(plan->parameters), parameters);
  EXPECT_NEAR(static_cast<double>(plan->step.peak().of(inspect::TensorKind::optimizer)) / (8 * parameters), 1, 0.01);
  const auto refusal = [](const std::string& config) {
    return error_of([&] { plan_memory(recipe_with(config, {}), {8, 128}); });
  };
  EXPECT_THAT(refusal(gpt_config("one_head", 200, 16384, 1, 50257)), testing::HasSubstr("n_embd = 16384"));
  EXPECT_THAT(refusal(gpt_config("endless", 4096, 1 << 24, 1 << 10, 50257)), testing::HasSubstr("n_embd = 16777216"));
}

TEST(Sketch, SaysWhatItCannotDeepen) {
  inspect::TensorTimeline step{.events = 2};
  step.tensors = {{.bytes = 8, .module = "net.layer.0", .phase = "forward", .born = 0, .died = 2},
                  {.bytes = 8, .module = "net.layer.1", .phase = "forward", .born = 1, .died = 2}};
  EXPECT_THROW(extrapolate_depth(step, 5), c10::Error) << "two layers";
  EXPECT_THROW(extrapolate_depth(step, 2), c10::ValueError);
}

}  // namespace bellows::train
