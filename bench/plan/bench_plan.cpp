// The memory that a plan predicts beside what the step then takes, for twelve configurations that no plan was fitted
// on, and two that keep less of what backward needs.
#include <cmath>

#include "bellows/plan/dry_run.h"
#include "bellows/plan/plan.h"
#include "bellows/tap/allocator.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

using train::Recipe;
using train::StepSize;

struct Configuration {
  const char *model, *optimizer, *precision, *level;
  int64_t accumulate;
  StepSize size;
  const char* setting = "";  ///< a further key of the recipe
};

// The quick ones first.
constexpr Configuration configurations[] = {{"mlp", "sgd", "fp32", "O1", 1, {1024, 0}},
                                            {"digits_resnet", "adamw", "fp32", "O1", 1, {256, 0}},
                                            {"bert-20m", "adamw", "fp32", "O1", 1, {16, 128}},
                                            {"encoder_decoder", "adamw", "fp32", "O1", 4, {64, 26}},
                                            {"resnet18", "sgd", "fp32", "O1", 1, {16, 224}},
                                            {"resnet18", "adamw", "bf16", "O1", 1, {16, 160}},
                                            {"resnet50", "sgd", "fp32", "O1", 1, {8, 224}},
                                            {"unet", "adamw", "fp32", "O1", 1, {4, 128}},
                                            {"bert-20m", "adamw", "bf16", "O1", 1, {8, 256}},
                                            {"bert-base", "adamw", "bf16", "O2", 1, {8, 128}},
                                            {"distilbert-base", "lion", "fp32", "O1", 1, {8, 192}},
                                            {"gpt2", "adamw", "fp32", "O1", 1, {4, 128}},
                                            {"bert-20m", "adamw", "fp32", "O1", 1, {16, 128}, "recompute=blocks"},
                                            {"bert-20m", "adamw", "fp32", "O1", 1, {16, 128}, "activation_dtype=int8"}};
constexpr size_t quick_ones = 5;

Recipe recipe_of(const Configuration& configuration) {
  Recipe recipe;
  recipe.model = configuration.model;
  recipe.optimizer = configuration.optimizer;
  recipe.precision = configuration.precision;
  recipe.amp_level = configuration.level;
  recipe.gradient_accumulation_steps = configuration.accumulate;
  if (*configuration.setting != '\0') recipe.set(configuration.setting);
  return recipe;
}

std::string words(const Configuration& configuration, const train::MemoryPlan& plan) {
  return std::string(configuration.model) + ", batch " + std::to_string(plan.size.batch) + " x " +
         std::to_string(plan.size.length) + ", " + configuration.optimizer + ", " + configuration.precision +
         (std::string(configuration.level) == "O2" ? " O2" : "") +
         (configuration.accumulate > 1 ? ", accumulated" : "") + (*configuration.setting == '\0' ? "" : ", ") +
         configuration.setting;
}

int program(const Options& options) {
  Report report("plan", options);
  size_t left = options.quick ? quick_ones : std::size(configurations);
  for (const Configuration& configuration : configurations) {
    if (left-- == 0) break;
    const Recipe recipe = recipe_of(configuration);
    tap::install_cpu_allocator();
    tap::reset_cpu_allocation_peak();
    const int64_t before = tap::cpu_allocation_counters().current_bytes;
    const train::MemoryPlan plan = train::plan_memory(recipe, configuration.size);
    const int64_t own = tap::cpu_allocation_counters().peak_bytes - before;
    const auto predicted = static_cast<double>(plan.peak_bytes());
    const auto measured = static_cast<double>(train::DryRun(recipe).measure(configuration.size));
    report.add({.work = words(configuration, plan),
                .metric = "predicted peak (limit: measured peak)",
                .unit = "MB",
                .ours = predicted / 1e6,
                .limit = measured / 1e6,
                .equal = std::abs(predicted / measured - 1) <= 0.05,
                .note = "error " + std::to_string(100 * (predicted / measured - 1)).substr(0, 6) + " %; " +
                        std::to_string(plan.unfitted.size()) + " tensors estimated; planning used " +
                        std::to_string(own / 1'000'000) + " MB"});
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  return bellows::bench::bench_main(argc, argv,
                                    "Predicts the peak memory of training steps from small steps, and then runs the "
                                    "training steps. Fails if an error exceeds\n5 %.",
                                    bellows::bench::program);
}
