#include "bellows/plan/context_strategy.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "bellows/parallel/context/sequence_layout.h"
#include "bellows/plan/depth_extrapolation.h"
#include "bellows/plan/dry_run.h"
#include "bellows/plan/strategy_mesh.h"

namespace bellows::train {

namespace {

using inspect::TensorKind;

int64_t divided_peak(const MemoryPlan& plan, int64_t ranks) {
  inspect::TensorTimeline step = plan.model.at(plan.size);
  for (inspect::TensorLife& tensor : step.tensors) {
    const bool computed = tensor.kind == TensorKind::activation || tensor.kind == TensorKind::temporary;
    if (computed && !repeated_block(tensor.module).empty()) tensor.bytes = (tensor.bytes + ranks - 1) / ranks;
  }
  if (plan.recipe.gradient_accumulation_steps == 1) keep_gradients(step);
  return step.peak().bytes;
}

int64_t bytes_of_sequences(const MemoryPlan& plan, int64_t gradient_bytes, int64_t ranks) {
  const int64_t number_bytes = plan.recipe.precision == "fp32" ? 4 : 2;
  const int64_t passes = plan.recipe.recompute == "blocks" ? 3 : 2;
  const int64_t tokens = plan.size.batch * plan.size.length * plan.recipe.gradient_accumulation_steps;
  const int64_t numbers = 2 * tokens * plan.model_size.width();
  const int64_t layers = plan.model_size.layers * (passes * number_bytes + 4), output = number_bytes;
  return (ranks - 1) * numbers * (layers + output) + bytes_sent_per_step(0, ranks, gradient_bytes);
}

/// Share of the matrix multiplications of a step that belong to the head of a language model.
double share_of_head(const MemoryPlan& plan) {
  if (dry_run_entry(plan.recipe).output != models::OutputKind::token) return 0;
  const models::ModelSize& model = plan.model_size;
  const auto width = static_cast<double>(model.width());
  const double attention = 4 * width + 2 * static_cast<double>(plan.size.length);
  const double layers = static_cast<double>(model.layers) * (attention + 2 * static_cast<double>(model.inner)) * width;
  const double head = static_cast<double>(model.words) * width;
  return head / (layers + head);
}

}  // namespace

std::optional<StrategyRow> context_strategy(const MemoryPlan& plan, const Situation& situation, int64_t ranks,
                                            double link_bytes_per_second) {
  const int64_t chunks = parallel::SequenceLayout{.ranks = static_cast<int>(ranks)}.chunks();
  const std::string mesh = c10::str("context: ", ranks);
  if (plan.model_size.layers == 0 || plan.size.length % chunks != 0 || !accepts_mesh(plan.recipe, mesh)) return {};
  StrategyRow row{.measures = {.accumulate = ranks}, .data_parallel = "ddp", .mesh = mesh};
  row.techniques = to_string(row.measures);
  row.bytes_per_rank = divided_peak(plan, ranks);
  row.fits = row.bytes_per_rank <= situation.capacity;
  row.bytes_sent = bytes_of_sequences(plan, situation.gradient_bytes, ranks);
  if (link_bytes_per_second > 0) row.exchange_seconds = static_cast<double>(row.bytes_sent) / link_bytes_per_second;
  row.compute_seconds = situation.step_seconds * (1 + static_cast<double>(ranks - 1) * share_of_head(plan));
  return row;
}

}  // namespace bellows::train
