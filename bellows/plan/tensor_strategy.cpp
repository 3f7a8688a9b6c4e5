#include "bellows/plan/tensor_strategy.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cmath>

#include "bellows/plan/strategy_mesh.h"

namespace bellows::train {

namespace {

using inspect::TensorKind;

std::string mesh_for(int64_t ranks) {
  return c10::str("tensor: ", ranks);
}

/// Share of the activations of a layer that each rank holds.
double share_of_activations(const models::ModelSize& model, int64_t length, double ranks) {
  const double scores = 5.0 * static_cast<double>(model.heads * length) / static_cast<double>(model.width());
  return (10 + (24 + scores) / ranks) / (34 + scores);
}

int64_t estimated_peak(const MemoryPlan& plan, int64_t ranks) {
  const auto count = static_cast<double>(ranks);
  const double share = share_of_activations(plan.model_size, plan.size.length, count);
  inspect::TensorTimeline step = plan.model.at({plan.size.batch * ranks, plan.size.length});
  for (inspect::TensorLife& tensor : step.tensors) {
    const bool computed = tensor.kind == TensorKind::activation || tensor.kind == TensorKind::temporary;
    const double factor = has_parameters(tensor.kind) ? 1 / count : computed ? share : 1;
    tensor.bytes = std::llround(static_cast<double>(tensor.bytes) * factor);
  }
  return step.peak().bytes;
}

int64_t estimated_exchange(const MemoryPlan& plan, int64_t ranks) {
  const auto count = static_cast<double>(ranks);
  const double number_bytes = plan.recipe.precision == "fp32" ? 4 : 2;
  const double activations = static_cast<double>(plan.size.batch * ranks * plan.size.length) *
                             static_cast<double>(plan.model_size.width()) * number_bytes;
  const double sums = static_cast<double>(plan.model_size.layers) * (plan.recipe.recompute == "blocks" ? 6 : 4) + 2;
  return std::llround(2 * (count - 1) / count * sums * activations *
                      static_cast<double>(plan.recipe.gradient_accumulation_steps));
}

}  // namespace

std::optional<StrategyRow> tensor_strategy(const MemoryPlan& plan, const Situation& situation, int64_t ranks,
                                           double link_bytes_per_second) {
  const models::ModelSize& model = plan.model_size;
  const bool divisible = model.layers > 0 && model.heads % ranks == 0 && model.inner % ranks == 0;
  if (!divisible || !accepts_mesh(plan.recipe, mesh_for(ranks))) return {};
  StrategyRow row{.measures = {}, .data_parallel = "ddp", .mesh = mesh_for(ranks)};
  row.bytes_per_rank = estimated_peak(plan, ranks);
  row.fits = row.bytes_per_rank <= situation.capacity;
  row.bytes_sent = estimated_exchange(plan, ranks);
  if (link_bytes_per_second > 0) row.exchange_seconds = static_cast<double>(row.bytes_sent) / link_bytes_per_second;
  row.compute_seconds = situation.step_seconds;
  return row;
}

}  // namespace bellows::train
