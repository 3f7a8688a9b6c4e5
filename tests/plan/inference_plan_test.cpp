#include <gmock/gmock.h>

#include "bellows/core/grad_mode.h"
#include "bellows/models/registry.h"
#include "bellows/plan/inference_plan.h"
#include "bellows/tap/allocator.h"
#include "tests/support/errors.h"

namespace bellows::train {
namespace {

using ::testing::HasSubstr;

/// The peak of a forward pass of the model itself, with the inputs.
int64_t measured_activations(const std::string& name, int64_t classes, const StepSize& size) {
  const models::ModelEntry entry = models::model_entry(name);
  const Model model = entry.make(classes, entry.input_shape[0]);
  model.eval();
  const inference_mode no_graph;
  const auto run = [&] { model.forward_all(models::example_inputs(entry, size.batch, size.length)); };
  run();
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  tap::reset_cpu_allocation_peak();
  run();
  return tap::cpu_allocation_counters().peak_bytes - before;
}

TEST(InferencePlan, PredictsActivations) {
  tap::install_cpu_allocator();
  for (const auto& [model, size] : {std::pair("digits_resnet", StepSize{16, 16}), {"bert-20m", StepSize{6, 96}}}) {
    SCOPED_TRACE(model);
    Recipe recipe;
    recipe.model = model;
    const InferencePlan plan = plan_inference(recipe, size);
    const auto measured = static_cast<double>(measured_activations(model, 10, size));
    EXPECT_GT(static_cast<double>(plan.activation_bytes), 0.95 * measured);
    EXPECT_LT(static_cast<double>(plan.activation_bytes), 1.35 * measured) << "an upper estimate";
    EXPECT_GT(plan.weight_bytes, 0);
  }
}

TEST(InferencePlan, WeightsHaveThePrecisionOfTheRecipe) {
  Recipe recipe;
  recipe.model = "bert-20m";
  const InferencePlan fp32 = plan_inference(recipe, {1, 16});
  recipe.precision = "bf16";
  recipe.amp_level = "O3";
  EXPECT_EQ(plan_inference(recipe, {1, 16}).weight_bytes * 2, fp32.weight_bytes);
}

TEST(InferencePlan, TheDeviceMapLeavesMemoryForActivations) {
  Recipe recipe;
  recipe.model = "bert-20m";
  const InferencePlan plan = plan_inference(recipe, {2, 64});
  const int64_t budget = plan.weight_bytes * 3 / 4 + plan.activation_bytes;
  const parallel::DeviceMap map = plan.device_map(budget);
  EXPECT_GT(map.disk_bytes, 0);
  EXPECT_EQ(map.device_bytes + map.working_bytes + plan.activation_bytes + plan.buffer_bytes, budget);
}

TEST(InferencePlan, InvalidSizesThrow) {
  Recipe recipe;
  recipe.model = "bert-20m";
  EXPECT_THAT(message_of([&] { plan_inference(recipe, {0, 16}); }), HasSubstr("must be at least 1, got 0"));
}

}  // namespace
}  // namespace bellows::train
