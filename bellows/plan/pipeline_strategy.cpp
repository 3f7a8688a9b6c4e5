#include "bellows/plan/pipeline_strategy.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "bellows/parallel/pipeline/timeline.h"
#include "bellows/plan/strategy_mesh.h"
#include "bellows/train/recipe/pipeline_keys.h"

namespace bellows::train {

namespace {

/// The stages of a pipeline.
struct PlannedPipeline {
  int64_t ranks = 1, samples = 1;
  parallel::PipelineSchedule schedule;
  int64_t samples_at_once() const { return (samples + schedule.micro_batches - 1) / schedule.micro_batches; }
  int64_t layers_of(int64_t all) const { return (all + ranks - 1) / ranks; }
};

PlannedPipeline planned_pipeline(Recipe recipe, int64_t ranks, int64_t samples) {
  recipe.mesh = c10::str("pipeline: ", ranks);
  recipe.batch_size = samples;
  recipe.batch_size_per_rank = 0;
  return {.ranks = ranks, .samples = samples, .schedule = pipeline_schedule(recipe)};
}

/// Share of the parameters that the first stage has.
double share_of_first_stage(const models::ModelSize& model, const PlannedPipeline& pipeline) {
  models::ModelSize part = model;
  part.layers = pipeline.layers_of(model.layers);
  return part.parameters() / model.parameters();
}

int64_t pipeline_peak(const MemoryPlan& plan, const PlannedPipeline& pipeline) {
  const models::ModelSize& model = plan.model_size;
  const double weights = share_of_first_stage(model, pipeline);
  const double layers = static_cast<double>(pipeline.layers_of(model.layers)) / static_cast<double>(model.layers);
  const double activations = layers * parallel::activations_in_flight(pipeline.schedule).front();
  inspect::TensorTimeline step = plan.model.at({pipeline.samples_at_once(), plan.size.length});
  for (inspect::TensorLife& tensor : step.tensors) {
    const bool kept = tensor.kind == inspect::TensorKind::activation;
    const double factor = has_parameters(tensor.kind) ? weights : kept ? activations : 1;
    tensor.bytes = std::llround(static_cast<double>(tensor.bytes) * factor);
  }
  return step.peak().bytes;
}

/// Outputs to the next stage, and gradients to the previous one.
int64_t bytes_between_stages(const MemoryPlan& plan, const PlannedPipeline& pipeline) {
  const double number_bytes = plan.recipe.precision == "fp32" ? 4 : 2;
  const double messages = pipeline.ranks > 2 ? 2 : 1;
  return std::llround(messages * static_cast<double>(pipeline.samples * plan.size.length * plan.model_size.width()) *
                      number_bytes);
}

}  // namespace

std::optional<StrategyRow> estimate_pipeline(const MemoryPlan& plan, const Situation& situation, int64_t ranks,
                                             double link_bytes_per_second) {
  if (plan.model_size.layers < ranks) return {};
  const PlannedPipeline pipeline = planned_pipeline(plan.recipe, ranks, plan.size.batch * ranks);
  StrategyRow row{.measures = {}, .data_parallel = "ddp", .mesh = c10::str("pipeline: ", ranks)};
  row.bytes_per_rank = pipeline_peak(plan, pipeline);
  row.fits = row.bytes_per_rank <= situation.capacity;
  row.bytes_sent = bytes_between_stages(plan, pipeline);
  if (link_bytes_per_second > 0) row.exchange_seconds = static_cast<double>(row.bytes_sent) / link_bytes_per_second;
  const double bubble = parallel::plan_timeline(pipeline.schedule, {}).bubble_share();
  row.compute_seconds = situation.step_seconds / (1 - bubble);
  return row;
}

std::optional<StrategyRow> pipeline_strategy(const MemoryPlan& plan, const Situation& situation, int64_t ranks,
                                             double link_bytes_per_second) {
  if (!accepts_mesh(plan.recipe, c10::str("pipeline: ", ranks))) return {};
  return estimate_pipeline(plan, situation, ranks, link_bytes_per_second);
}

}  // namespace bellows::train
