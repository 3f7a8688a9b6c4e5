#include "bellows/train/plan.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <map>
#include <utility>

namespace bellows::train {

namespace {

using inspect::TensorKind;
using inspect::TensorLife;
using models::InputKind;

constexpr int64_t long_from = 64, short_length = 32;
constexpr int64_t tried_up_to = 1024;  // of pictures and series, whose single sample may need more than the machine has

/// Sizes that are small, and tell the laws apart. Pictures keep what is left over when they are halved five times.
std::vector<StepSize> small_sizes(InputKind input, int64_t length) {
  if (length <= long_from) return {{2, length}, {3, length}};
  const int64_t rest = input == InputKind::image ? length % 32 : 0;
  const int64_t first = (input == InputKind::image ? 64 : short_length) + rest;
  return {{2, first}, {3, first}, {2, 2 * first - rest}};
}

bool takes(Rehearsal& rehearsal, int64_t length) {
  try {
    rehearsal.try_length(length);
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

/// Short ones stand for long ones where the model takes them; one with a linear layer over all of a picture does not.
std::vector<StepSize> rehearsed_sizes(Rehearsal& rehearsal, int64_t length) {
  const InputKind input = rehearsal.entry().input;
  std::vector<StepSize> sizes = small_sizes(input, length);
  if (length <= long_from) return sizes;
  if (input == InputKind::tokens || length <= tried_up_to) rehearsal.try_length(length);
  if (!takes(rehearsal, sizes.front().length)) sizes = {{2, length}, {3, length}};
  return sizes;
}

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

void count_parameters(MemoryPlan& plan, const Rehearsal& rehearsal) {
  for (const std::vector<int64_t>& shape : rehearsal.parameter_shapes()) {
    const int64_t count = elements(shape);
    plan.parameters += count;
    if (shape.size() < 2) {
      plan.factored += count;
    } else {
      const int64_t rows = shape[shape.size() - 2], columns = shape.back();
      plan.factored += count / columns + count / rows;
    }
  }
}

/// Time of the step from those of the small ones: a constant, and a part that grows with what is computed.
double extrapolated_seconds(InputKind input, const std::vector<StepSize>& sizes, const std::vector<double>& seconds,
                            const StepSize& wanted) {
  const auto work = [&](const StepSize& size) {
    const auto length = static_cast<double>(size.length);
    return static_cast<double>(size.batch) * (input == InputKind::image ? length * length : length);
  };
  const auto by_work = [&](size_t a, size_t b) { return work(sizes[a]) < work(sizes[b]); };
  std::vector<size_t> order(sizes.size());
  for (const auto i : c10::irange(order.size())) order[i] = i;
  const auto [low, high] = std::minmax_element(order.begin(), order.end(), by_work);
  const double slope = (seconds[*high] - seconds[*low]) / (work(sizes[*high]) - work(sizes[*low]));
  const double most = seconds[*high] / work(sizes[*high]);  // no constant at all
  const double used = std::clamp(slope, 0.25 * most, most);
  return seconds[*high] + used * (work(wanted) - work(sizes[*high]));
}

void list_activations(MemoryPlan& plan) {
  std::map<std::string, size_t> index;
  for (const TensorLife& tensor : plan.step.tensors) {
    if (tensor.kind != TensorKind::activation) continue;
    const auto [place, is_new] = index.try_emplace(tensor.module, plan.activations.size());
    if (is_new) plan.activations.push_back({tensor.module, 0});
    plan.activations[place->second].bytes += tensor.bytes;
  }
}

void list_unfitted(MemoryPlan& plan) {
  for (const auto i : c10::irange(plan.step.tensors.size())) {
    const TensorLife& tensor = plan.step.tensors[i];
    if (plan.model.laws()[i].fits || tensor.bytes < plan.peak.bytes / 1000) continue;
    plan.unfitted.push_back({tensor.op, tensor.module, tensor.bytes});
  }
}

/// What docs/strategies.md says of n ranks, about the moment of the peak.
void share_between_ranks(MemoryPlan& plan) {
  if (plan.ranks == 1 || plan.recipe.data_parallel == "ddp") return;
  const auto others = [&](int64_t bytes) { return bytes - bytes / plan.ranks; };
  plan.saved_by_sharding = others(plan.peak.of(TensorKind::optimizer) + plan.peak.of(TensorKind::master));
  if (plan.recipe.data_parallel != "zero2") return;
  plan.saved_by_sharding += others(plan.peak.of(TensorKind::gradient));
  plan.communication = std::min(4 * (plan.recipe.bucket_mb << 20), plan.peak.of(TensorKind::gradient));
}

}  // namespace

MemoryPlan plan_memory(const Recipe& recipe, const StepSize& size, int64_t ranks) {
  TORCH_CHECK_VALUE(size.batch >= 1 && ranks >= 1 && size.batch % ranks == 0,
                    "plan_memory: expected a batch of at least 1 that the ranks can share, got a batch of ", size.batch,
                    " and ", ranks, ranks == 1 ? " rank." : " ranks.");
  TORCH_CHECK_VALUE(size.length >= 0, "plan_memory: expected a length of at least 0, got ", size.length, ".");
  Rehearsal rehearsal(recipe);
  const InputKind input = rehearsal.entry().input;
  const StepSize wanted{size.batch / ranks, rehearsal.length_of(size)};
  const std::vector<StepSize> sizes = rehearsed_sizes(rehearsal, wanted.length);
  std::vector<inspect::TensorTimeline> steps;
  std::vector<double> seconds;
  for (const StepSize& small : sizes) {
    steps.push_back(rehearsal.record(small));
    seconds.push_back(rehearsal.seconds());
  }
  StepModel model(sizes, std::move(steps));
  inspect::TensorTimeline step = model.at(wanted);
  const auto peak = step.peak();
  MemoryPlan plan{.recipe = recipe,
                  .size = wanted,
                  .ranks = ranks,
                  .model = std::move(model),
                  .step = std::move(step),
                  .peak = peak,
                  .step_seconds = extrapolated_seconds(input, sizes, seconds, wanted),
                  .rehearsed = sizes};
  count_parameters(plan, rehearsal);
  list_activations(plan);
  list_unfitted(plan);
  share_between_ranks(plan);
  for (const TensorLife& tensor : plan.step.tensors) {
    if (tensor.kind == TensorKind::input && tensor.born >= 0) plan.waiting += recipe.prefetch * tensor.bytes;
  }
  return plan;
}

void rehearse_bf16(MemoryPlan& plan) {
  if (plan.recipe.precision != "fp32" || plan.in_bf16) return;
  Recipe recipe = plan.recipe;
  recipe.precision = "bf16";
  recipe.precision_level = "O1";
  plan.in_bf16 = std::make_shared<const MemoryPlan>(
      plan_memory(recipe, {plan.size.batch * plan.ranks, plan.size.length}, plan.ranks));
}

}  // namespace bellows::train
