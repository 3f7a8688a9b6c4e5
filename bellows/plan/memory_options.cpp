#include "bellows/plan/memory_options.h"

#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "bellows/plan/depth_extrapolation.h"
#include "bellows/system/machine.h"
#include "bellows/techniques/technique.h"

namespace bellows::train {

namespace {

using inspect::TensorKind;
using inspect::TensorLife;
using inspect::TensorTimeline;
using Precision = MemoryOptions::Precision;
using Saved = MemoryOptions::Saved;
using State = MemoryOptions::State;

bool grows_with_batch(const SizeLaw& law) {
  return law.factors[1] + law.factors[3] + law.factors[5] > 0;
}

void add_bytes(TensorTimeline& step, TensorKind kind, int64_t bytes) {
  step.tensors.push_back({.bytes = bytes, .kind = kind, .born = -1, .died = step.events});
}

void scale(TensorTimeline& step, TensorKind kind, double factor) {
  for (TensorLife& tensor : step.tensors) {
    if (tensor.kind == kind) tensor.bytes = std::llround(factor * static_cast<double>(tensor.bytes));
  }
}

int64_t total(const TensorTimeline& step, TensorKind kind) {
  int64_t bytes = 0;
  for (const TensorLife& tensor : step.tensors) {
    if (tensor.kind == kind && tensor.died == step.events) bytes += tensor.bytes;
  }
  return bytes;
}

// ---- each measure

/// Number of events around a tensor's creation and its use in backward in which it has its full size.
constexpr int64_t in_use = 8;

void drop_gradients(TensorTimeline& step) {
  for (TensorLife& tensor : step.tensors) {
    if (tensor.kind != TensorKind::gradient) continue;
    if (tensor.born < 0) tensor.bytes = 0;  // of the previous step
    tensor.died = std::min(tensor.died, tensor.born + in_use);
  }
}

void lower_precision(TensorTimeline& step, const MemoryPlan& plan, Precision precision) {
  if (precision == Precision::as_it_is) return;
  const bool was_fp32 = plan.recipe.precision == "fp32";
  const auto& laws = plan.model.laws();
  for (const auto i : c10::irange(laws.size())) {  // tensors after these were added by other measures
    TensorLife& tensor = step.tensors[i];
    const bool halved =
        (tensor.kind == TensorKind::activation && tensor.element_bytes == 4) ||
        (tensor.kind == TensorKind::temporary && tensor.phase != "optimizer" && grows_with_batch(laws[i]));
    if (was_fp32 && halved) {
      tensor.bytes /= 2;
      tensor.element_bytes = 2;
    }
  }
  if (precision == Precision::bf16_weights) {
    scale(step, TensorKind::weight, 0.5);
    scale(step, TensorKind::gradient, 0.5);
    scale(step, TensorKind::weight_copy, 0);
    add_bytes(step, TensorKind::master, 4 * plan.parameters);
  } else if (was_fp32) {
    add_bytes(step, TensorKind::weight_copy, 2 * plan.parameters);
  }
}

void shrink_state(TensorTimeline& step, const MemoryPlan& plan, State state) {
  if (state == State::as_it_is) return;
  const double moments = plan.recipe.optimizer.starts_with("adam") ? 2 : 1;
  const double bytes = state == State::eight_bit  ? moments * (1 + 4.0 / 256) * static_cast<double>(plan.parameters)
                       : state == State::four_bit ? moments * (0.5 + 4.0 / 128) * static_cast<double>(plan.parameters)
                       : state == State::factored ? 4.0 * static_cast<double>(plan.factored)
                                                  : 4.0 * static_cast<double>(plan.parameters);
  scale(step, TensorKind::optimizer, 0);
  add_bytes(step, TensorKind::optimizer, std::llround(bytes));
}

/// Keeps `share` of a tensor between its uses. It has its full size around its creation, and in backward from event
/// `again` on.
void keep_share(TensorTimeline& step, size_t index, double share, int64_t again) {
  TensorLife& tensor = step.tensors[index];
  const int64_t kept = std::llround(share * static_cast<double>(tensor.bytes));
  TensorLife rest = tensor;
  rest.kind = TensorKind::temporary;
  rest.bytes -= kept;
  tensor.bytes = kept;
  const int64_t forgotten = rest.born + in_use;
  if (forgotten >= again || tensor.died == step.events) {  // the interval is too short
    step.tensors.push_back(rest);
    return;
  }
  TensorLife later = rest;
  rest.died = forgotten;
  later.born = again;
  step.tensors.insert(step.tensors.end(), {rest, later});
}

/// Keeps one tensor of median size per block, and the share `kept` of the others, which have their full size while
/// backward runs in the block.
void recompute_blocks(TensorTimeline& step, double kept) {
  std::map<std::string, std::vector<size_t>> blocks;
  for (const auto i : c10::irange(step.tensors.size())) {
    const TensorLife& tensor = step.tensors[i];
    const std::string block = tensor.kind == TensorKind::activation ? repeated_block(tensor.module) : "";
    if (!block.empty()) blocks[block].push_back(i);
  }
  for (auto& [name, members] : blocks) {
    int64_t first_use = step.events;
    for (const size_t i : members) first_use = std::min(first_use, step.tensors[i].died);
    const auto median = members.begin() + static_cast<int64_t>(members.size() / 2);
    std::nth_element(members.begin(), median, members.end(),
                     [&](size_t a, size_t b) { return step.tensors[a].bytes < step.tensors[b].bytes; });
    for (auto member = members.begin(); member != members.end(); ++member) {
      if (member != median) keep_share(step, *member, kept, first_use - in_use);
    }
  }
}

void keep_less(TensorTimeline& step, Saved saved) {
  if (saved == Saved::as_it_is) return;
  if (saved == Saved::recomputed) return recompute_blocks(step, 0);
  if (saved == Saved::half_recomputed) return recompute_blocks(step, 0.5);
  const double per_element = saved == Saved::in_bf16   ? 2
                             : saved == Saved::in_int8 ? 1 + 8.0 / 256
                             : saved == Saved::in_int4 ? 0.5 + 8.0 / 256
                                                       : 0;
  const size_t count = step.tensors.size();
  for (size_t i = 0; i < count; ++i) {
    const TensorLife& tensor = step.tensors[i];
    if (tensor.kind != TensorKind::activation || tensor.element_bytes == 0) continue;
    keep_share(step, i, std::min(1.0, per_element / static_cast<double>(tensor.element_bytes)), tensor.died - in_use);
  }
}

/// Removes what remains of a rank's shards. Returns the bytes that files have in memory instead.
int64_t drop_shards(TensorTimeline& step, const MemoryPlan& plan) {
  const int64_t state = total(step, TensorKind::optimizer) + total(step, TensorKind::master);
  int64_t windows = std::min(offload_window, total(step, TensorKind::weight)) +
                    std::min(offload_window, total(step, TensorKind::gradient)) + std::min(2 * offload_window, state);
  for (const TensorKind kind : {TensorKind::weight, TensorKind::gradient, TensorKind::optimizer, TensorKind::master})
    scale(step, kind, 0);
  return plan.recipe.device.starts_with("cpu") ? windows : 0;
}

void share_state(TensorTimeline& step, const MemoryPlan& plan, const MemoryOptions& measures) {
  if (measures.stage == 0 || measures.ranks < 2) return;
  const double share = 1.0 / static_cast<double>(measures.ranks);
  scale(step, TensorKind::optimizer, share);
  scale(step, TensorKind::master, share);
  if (measures.stage < 2) return;
  const int64_t bucket = plan.recipe.bucket_mb << 20;
  int64_t buckets = std::min(4 * bucket, total(step, TensorKind::gradient));
  scale(step, TensorKind::gradient, share);
  if (measures.stage == 3) {
    buckets += std::min(2 * bucket, total(step, TensorKind::weight));
    scale(step, TensorKind::weight, share);
  }
  if (measures.offloaded_shards && measures.stage == 3) buckets += drop_shards(step, plan);
  add_bytes(step, TensorKind::temporary, buckets);
}

/// An estimate of the time of a step with offloaded shards, relative to the time without. It depends on the disk, which
/// `script/bench ddp` measures (rows zero3_files).
constexpr double offloaded_shards_time = 1.5;

double expected_time(const char* technique) {
  return technique_table().at(technique).expected.time_factor;
}

bool has_moments(const Recipe& recipe) {
  return recipe.optimizer.starts_with("adam") || recipe.optimizer == "lion" ||
         (recipe.optimizer == "sgd" && recipe.momentum > 0);
}

}  // namespace

void keep_gradients(TensorTimeline& step) {
  std::vector<TensorLife> added;
  for (TensorLife& tensor : step.tensors) {
    if (tensor.kind != TensorKind::gradient) continue;
    if (tensor.born < 0) {
      tensor.bytes = 0;  // of the previous step; now the same tensor
    } else {
      TensorLife share = tensor;  // added to the gradient and freed
      share.kind = TensorKind::temporary;
      share.died = share.born + 1;
      added.push_back(share);
      tensor.born = -1;
    }
  }
  step.tensors.insert(step.tensors.end(), added.begin(), added.end());
}

int64_t peak_with(const MemoryPlan& plan, const MemoryOptions& measures) {
  if (plan.in_bf16 && measures.precision != Precision::as_it_is) {
    MemoryOptions rest = measures;
    if (rest.precision == Precision::bf16) rest.precision = Precision::as_it_is;
    return peak_with(*plan.in_bf16, rest);
  }
  const int64_t parts = measures.accumulate * measures.shrink;
  StepSize size = plan.size;
  size.batch = std::max<int64_t>(1, (size.batch + parts - 1) / parts);
  TensorTimeline step = plan.model.at(size);
  lower_precision(step, plan, measures.precision);
  shrink_state(step, plan, measures.state);
  keep_less(step, measures.saved);
  if (measures.accumulate > 1 && plan.recipe.gradient_accumulation_steps == 1) keep_gradients(step);
  if (measures.in_backward) drop_gradients(step);
  share_state(step, plan, measures);
  const int64_t shared_already = measures.stage > 0 ? 0 : plan.communication - plan.saved_by_sharding;
  return step.peak().bytes + shared_already;
}

double time_factor(const MemoryOptions& measures, bool bf16_arithmetic) {
  constexpr double emulated = 1.3;
  double factor = std::pow(expected_time("accumulation"), std::log2(static_cast<double>(measures.accumulate)) / 2);
  if (measures.precision != Precision::as_it_is) factor *= bf16_arithmetic ? expected_time("bf16_autocast") : emulated;
  if (measures.precision == Precision::bf16_weights) factor *= expected_time("bf16_weights");
  if (measures.state == State::eight_bit) factor *= expected_time("int8_state");
  if (measures.state == State::four_bit) factor *= expected_time("int4_state");
  if (measures.state == State::factored) factor *= expected_time("adafactor");
  if (measures.saved == Saved::in_bf16) factor *= expected_time("bf16_activations");
  if (measures.saved == Saved::in_int8) factor *= expected_time("int8_activations");
  if (measures.saved == Saved::in_int4) factor *= expected_time("int4_activations");
  if (measures.saved == Saved::half_recomputed) factor *= expected_time("recompute_budget");
  if (measures.saved == Saved::recomputed) factor *= expected_time("recompute");
  if (measures.saved == Saved::offloaded) factor *= expected_time("activation_offload");
  if (measures.in_backward) factor *= expected_time("step_in_backward");
  if (measures.offloaded_shards) factor *= offloaded_shards_time;
  return measures.stage > 0 ? std::numeric_limits<double>::quiet_NaN() : factor;
}

int roughness(const MemoryOptions& measures) {
  const int precision = static_cast<int>(measures.precision);  // 0 unchanged, 1 matmuls, 2 also weights
  const int state = measures.state == State::four_bit ? 2 : measures.state == State::eight_bit ? 1 : 0;
  const int saved = measures.saved == Saved::in_int4                                       ? 2
                    : measures.saved == Saved::in_int8 || measures.saved == Saved::in_bf16 ? 1
                                                                                           : 0;
  return precision + state + saved;
}

std::string to_string(const MemoryOptions& measures) {
  std::vector<std::string> words;
  if (measures.precision == Precision::bf16) words.emplace_back("bf16 autocast");
  if (measures.precision == Precision::bf16_weights) words.emplace_back("bf16 weights (O2)");
  if (measures.accumulate > 1) words.push_back(c10::str("gradient accumulation over ", measures.accumulate, " steps"));
  if (measures.shrink > 1) words.push_back(c10::str("batch size / ", measures.shrink));
  if (measures.state == State::eight_bit) words.emplace_back("8-bit optimizer state");
  if (measures.state == State::four_bit) words.emplace_back("4-bit optimizer state");
  if (measures.state == State::factored) words.emplace_back("Adafactor");
  if (measures.state == State::one_moment) words.emplace_back("SGD with momentum");
  if (measures.saved == Saved::in_bf16) words.emplace_back("activations in bf16");
  if (measures.saved == Saved::in_int8) words.emplace_back("activations in int8");
  if (measures.saved == Saved::in_int4) words.emplace_back("activations in int4");
  if (measures.saved == Saved::half_recomputed) words.emplace_back("selective activation checkpointing");
  if (measures.saved == Saved::recomputed) words.emplace_back("activation checkpointing");
  if (measures.saved == Saved::offloaded) words.emplace_back("activation offloading");
  if (measures.in_backward) words.emplace_back("optimizer in backward");
  if (measures.offloaded_shards) words.emplace_back("offloaded shards");
  if (measures.stage > 0) words.push_back(c10::str("ZeRO-", measures.stage, " on ", measures.ranks, " ranks"));
  return words.empty() ? "nothing" : c10::Join(", ", words);
}

std::vector<PredictedTechnique> predict_techniques(const MemoryPlan& plan, int64_t ranks) {
  const bool adam = plan.recipe.optimizer.starts_with("adam"), fp32 = plan.recipe.precision == "fp32";
  const bool arithmetic = this_machine().has_bf16_arithmetic();
  std::vector<PredictedTechnique> rows;
  const auto add = [&](bool applies, const MemoryOptions& measures, std::string cost) {
    if (!applies) return;
    rows.push_back(
        {to_string(measures), measures, peak_with(plan, measures), time_factor(measures, arithmetic), std::move(cost)});
  };
  add(fp32, {.precision = Precision::bf16}, "rounds matmuls to bf16");
  add(fp32 || plan.recipe.amp_level == "O1", {.precision = Precision::bf16_weights}, "rounds gradients to bf16");
  const bool low_bit = has_moments(plan.recipe) && plan.recipe.optimizer_state == "auto";
  add(low_bit, {.state = State::eight_bit}, "rounds optimizer state");
  add(low_bit, {.state = State::four_bit}, "rounds optimizer state");
  add(adam, {.state = State::factored}, "may converge more slowly");
  add(adam, {.state = State::one_moment}, "different optimizer");
  add(plan.size.batch >= 4, {.accumulate = 4}, "batch norm sees 1/4 batch");
  add(true, {.saved = Saved::half_recomputed}, "none, bit-identical");
  add(true, {.saved = Saved::recomputed}, "none, bit-identical");
  add(true, {.saved = Saved::in_bf16}, "rounds gradients");
  add(true, {.saved = Saved::in_int8}, "adds noise to gradients");
  add(true, {.saved = Saved::in_int4}, "adds noise to gradients");
  add(!plan.recipe.optimizer_in_backward && plan.ranks == 1 && optimizer_in_backward_conflict(plan.recipe).empty(),
      {.in_backward = true}, "no clipping or accumulation");
  add(true, {.saved = Saved::offloaded}, "disk or host transfers");
  add(true, {.stage = 1, .ranks = std::max<int64_t>(ranks, 2)}, "all-gathers parameters");
  add(true, {.stage = 2, .ranks = std::max<int64_t>(ranks, 2)}, "all-gathers parameters");
  add(true, {.stage = 3, .ranks = std::max<int64_t>(ranks, 2)}, "gathers parameters twice");
  add(plan.size.batch >= 2, {.shrink = 2}, "half the samples per step");
  return rows;
}

}  // namespace bellows::train
