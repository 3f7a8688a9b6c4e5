#include "bellows/plan/inference_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/amp/policy.h"
#include "bellows/amp/weight_shapes.h"
#include "bellows/core/grad_mode.h"
#include "bellows/models/registry.h"
#include "bellows/plan/step_model.h"
#include "bellows/tap/allocator.h"
#include "bellows/tap/skip_initialization.h"
#include "bellows/train/job.h"
#include "bellows/train/resolved_job.h"
#include "bellows/train/step/batch_placement.h"

namespace bellows::train {

namespace {

/// The model in the precision of the recipe, without values.
Model planned_model(const Recipe& recipe, const models::ModelEntry& entry, int64_t outputs) {
  const tap::SkipInitialization no_values;
  Model model = entry.make(outputs, entry.input_shape[0]);
  Recipe on_cpu = recipe;
  on_cpu.device = "cpu";
  place_model(on_cpu, model);
  if (const amp::Policy policy = precision_policy(recipe); policy.low_weights)
    model = amp::apply_without_values(model, policy);
  model.eval();
  return model;
}

int64_t outputs_of(const Recipe& recipe) {
  constexpr int64_t usual_classes = 10;
  const ResolvedJob job = resolve_model(recipe);
  if (job.task.outputs > 0) return job.task.outputs;
  return recipe.num_classes > 0 ? recipe.num_classes : usual_classes;
}

/// Small sizes that distinguish the laws.
std::vector<StepSize> inference_sizes(const models::ModelEntry& entry, int64_t length) {
  constexpr int64_t short_text = 32;
  if (entry.input != models::InputKind::tokens || length <= 2 * short_text) return {{1, length}, {2, length}};
  return {{2, short_text}, {3, short_text}, {2, 2 * short_text}};
}

int64_t forward_peak(const Model& model, const models::ModelEntry& entry, const StepSize& size,
                     const amp::Policy& policy) {
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  tap::reset_cpu_allocation_peak();
  const std::vector<at::Tensor> inputs = models::example_inputs(entry, size.batch, size.length);
  const inference_mode no_graph;
  const auto precision = make_precision_guard(policy, c10::kCPU);
  model.forward_all(inputs);
  return tap::cpu_allocation_counters().peak_bytes - before;
}

}  // namespace

InferencePlan plan_inference(const Recipe& recipe, const StepSize& size) {
  TORCH_CHECK_VALUE(size.batch >= 1, "plan_inference: the batch size must be at least 1, got ", size.batch, ".");
  const bool program = models::is_program_path(recipe.model);
  TORCH_CHECK_VALUE(!program, "plan_inference: the model ", recipe.model,
                    " is a file that contains its weights. Use a registered model or a config.json.");
  const models::ModelEntry entry = dry_run_entry(recipe);
  InferencePlan plan{.size = {size.batch, dry_run_length(recipe, entry, size)}, .weights = {}};
  tap::install_cpu_allocator();
  const Model model = planned_model(recipe, entry, outputs_of(recipe));
  plan.weights = parallel::weight_sizes(model);
  for (const parallel::WeightSize& weight : plan.weights) plan.weight_bytes += weight.bytes;
  for (const at::Tensor& buffer : model.buffers()) plan.buffer_bytes += static_cast<int64_t>(buffer.nbytes());
  const amp::Policy policy = precision_policy(recipe);
  const std::vector<StepSize> sizes = inference_sizes(entry, plan.size.length);
  forward_peak(model, entry, sizes.front(), policy);  // libraries allocate memory in the first pass
  std::vector<int64_t> peaks;
  peaks.reserve(sizes.size());
  for (const StepSize& one : sizes) peaks.push_back(forward_peak(model, entry, one, policy));
  const SizeLaw law = fit_size(sizes, peaks);
  plan.fits_law = law.fits;
  plan.activation_bytes = law.bytes(plan.size);
  return plan;
}

parallel::DeviceMap InferencePlan::device_map(int64_t device_bytes, int64_t host_bytes) const {
  return parallel::infer_device_map(
      weights,
      {.device_bytes = device_bytes, .host_bytes = host_bytes, .activation_bytes = activation_bytes + buffer_bytes});
}

}  // namespace bellows::train
