#include "bellows/plan/decision.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "bellows/core/stats.h"
#include "bellows/plan/candidates.h"
#include "bellows/system/machine.h"
#include "bellows/techniques/technique.h"

namespace bellows::train {

namespace {

using Peak = std::function<int64_t(const MemoryOptions&)>;
using Precision = MemoryOptions::Precision;
using Saved = MemoryOptions::Saved;
using State = MemoryOptions::State;

std::string size_words(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

/// Decides whether to use several ranks if the step fits on each of them.
void choose_ranks(Decision& decision, const Situation& situation) {
  decision.strategy = "alone";
  if (situation.ranks == 1) return;
  const double backward = situation.step_seconds * 2 / 3;
  const double exchange = 3 * static_cast<double>(situation.gradient_bytes) / situation.bandwidth;
  if (situation.step_seconds > 0 && situation.step_seconds < 0.01) {
    decision.reasons.push_back(c10::str("A step takes only ", format_seconds(situation.step_seconds),
                                        ", so ranks would spend most of the time waiting for each other. Use a larger "
                                        "batch first."));
  } else if (situation.step_seconds > 0 && exchange > backward) {
    decision.strategy = "ddp with a hook";
    decision.reasons.push_back(c10::str("DDP, but the exchange of ", size_words(situation.gradient_bytes),
                                        " of gradients takes longer (", format_seconds(exchange), ") than backward (",
                                        format_seconds(backward), "). Compress gradients, or use local SGD."));
  } else {
    decision.strategy = "ddp";
    decision.reasons.emplace_back(
        "DDP: the gradient exchange overlaps with backward. ZeRO would save memory that is not needed.");
  }
}

void suggest_larger_batch(Decision& decision, const Situation& situation) {
  if (decision.peak_bytes > situation.capacity / 2) return;
  decision.reasons.emplace_back(
      "More than half of the memory stays free. A larger batch would use the device better, if the accuracy allows "
      "it.");
}

/// The smallest number of parts of the batch that fits; 0 if none does.
int64_t parts_that_fit(const Situation& situation, MemoryOptions measures, const Peak& peak) {
  for (int64_t k = 1; k <= situation.batch; k *= 2) {
    measures.accumulate = k;
    if (peak(measures) <= situation.capacity) return k;
  }
  return 0;
}

struct Level {
  bool applies;
  std::function<void(MemoryOptions&)> add, drop;
  std::string reason;
};

std::vector<Level> levels(const Situation& situation) {
  const int64_t n = situation.ranks;
  return {
      {situation.fp32 && situation.bf16_arithmetic,
       [](MemoryOptions& m) { m.precision = Precision::bf16; },
       {},
       "bf16: activations need less memory, and this processor computes faster in bf16."},
      {situation.batch > 1,
       [](MemoryOptions&) {},
       {},
       "Gradient accumulation: processes the batch in parts, with the same mean gradient."},
      {situation.adam, [](MemoryOptions& m) { m.state = State::eight_bit; },
       [](MemoryOptions& m) { m.state = State::as_it_is; },
       "8-bit optimizer state: 2 bytes per parameter instead of 8."},
      {true, [](MemoryOptions& m) { m.saved = Saved::recomputed; }, [](MemoryOptions& m) { m.saved = Saved::as_it_is; },
       "Activation checkpointing: bit-identical, about 1.25× slower."},
      {n > 1, [n](MemoryOptions& m) { m.stage = 1, m.ranks = n; }, [](MemoryOptions& m) { m.stage = 0, m.ranks = 1; },
       "ZeRO-1: each rank stores its share of the optimizer state."},
      {n > 1, [n](MemoryOptions& m) { m.stage = 2, m.ranks = n; }, [n](MemoryOptions& m) { m.stage = 1, m.ranks = n; },
       "ZeRO-2: each rank also stores only its share of the gradients."},
      {n > 1, [n](MemoryOptions& m) { m.stage = 3, m.ranks = n; }, [n](MemoryOptions& m) { m.stage = 2, m.ranks = n; },
       "ZeRO-3: each rank also stores only its share of the parameters, and gathers them when they are used."},
      {true, [](MemoryOptions& m) { m.saved = Saved::offloaded; },
       [](MemoryOptions& m) { m.saved = Saved::recomputed; },
       "Activation offloading: activations are stored outside of the device's memory until backward."}};
}

/// Removes measures that later measures, or more parts, have made unnecessary; the most expensive first.
void prune(MemoryOptions& measures, const std::vector<Level>& tried, const Situation& situation, const Peak& peak) {
  for (auto level = tried.rbegin(); level != tried.rend(); ++level) {
    if (!level->drop) continue;
    MemoryOptions without = measures;
    level->drop(without);
    if (without == measures) continue;
    without.accumulate = parts_that_fit(situation, without, peak);
    if (without.accumulate > 0) measures = without;
  }
}

std::string strategy_of(const MemoryOptions& measures, const Situation& situation) {
  if (measures.stage > 0) return c10::str("zero", measures.stage);
  return situation.ranks > 1 ? "ddp" : "alone";
}

Decision make_it_fit(Decision decision, const Situation& situation, const Peak& peak) {
  MemoryOptions measures;
  std::vector<Level> tried;
  bool divided = false;
  for (const Level& level : levels(situation)) {
    if (!level.applies) continue;
    level.add(measures);
    tried.push_back(level);
    divided = divided || level.reason.starts_with("Gradient accumulation");
    const int64_t parts = divided ? parts_that_fit(situation, measures, peak) : peak(measures) <= situation.capacity;
    if (parts == 0) continue;
    measures.accumulate = parts;
    prune(measures, tried, situation, peak);
    decision.fits = true;
    break;
  }
  while (!decision.fits && divided && 2 * measures.accumulate <= situation.batch) measures.accumulate *= 2;
  decision.measures = measures;
  decision.peak_bytes = peak(measures);
  decision.strategy = decision.fits ? strategy_of(measures, situation) : "none";
  for (const Level& level : tried) {
    MemoryOptions with = measures;
    level.add(with);
    const bool accumulation = level.reason.starts_with("Gradient accumulation");
    if (accumulation ? measures.accumulate > 1 || !decision.fits : with == measures || measures.stage > with.stage)
      decision.reasons.push_back(level.reason);
  }
  decision.reasons.push_back(decision.fits
                                 ? c10::str("With this, the step fits: ", size_words(decision.peak_bytes), " of ",
                                            size_words(situation.capacity), ".")
                                 : c10::str("With all of these, the step still needs ", size_words(decision.peak_bytes),
                                            ". Use a larger device or more ranks."));
  return decision;
}

// ---- recipes that fit

/// Returns nothing if the model cannot be trained in this way, for example because it does not define blocks.
std::optional<MemoryPlan> planned(const Recipe& recipe, const MemoryPlan& like) {
  try {
    return plan_memory(recipe, {recipe.batch_size, like.size.length}, like.ranks);
  } catch (const c10::ValueError&) {
    return {};
  }
}

}  // namespace

std::string Decision::to_string() const {
  return train::to_string(measures) + "; " + strategy;
}

Decision decide(const Situation& situation, const Peak& peak) {
  Decision decision{.peak_bytes = peak({})};
  decision.fits = decision.peak_bytes <= situation.capacity;
  const std::string figures = size_words(decision.peak_bytes) + " of " + size_words(situation.capacity);
  if (!decision.fits) {
    decision.reasons.push_back("The step does not fit: it needs " + figures + ".");
    return make_it_fit(std::move(decision), situation, peak);
  }
  decision.reasons.push_back(
      "The step fits: " + figures +
      ". Sharding, activation checkpointing and gradient accumulation would only make it slower.");
  choose_ranks(decision, situation);
  suggest_larger_batch(decision, situation);
  return decision;
}

Situation situation_of(const MemoryPlan& plan) {
  const Machine machine = this_machine();
  return {
      .capacity = machine.memory_bytes,
      .batch = plan.size.batch,
      .ranks = plan.ranks,
      .gradient_bytes = plan.parameters * (plan.recipe.amp_level == "O1" || plan.recipe.precision == "fp32" ? 4 : 2),
      .step_seconds = plan.step_seconds,
      .fp32 = plan.recipe.precision == "fp32",
      .bf16_arithmetic = machine.has_bf16_arithmetic(),
      .adam = plan.recipe.optimizer.starts_with("adam")};
}

Decision decide(const MemoryPlan& plan, const Situation& situation) {
  return decide(situation, [&plan](const MemoryOptions& measures) { return peak_with(plan, measures); });
}

std::optional<FittingRecipe> cheapest_that_fits(const MemoryPlan& given, int64_t bytes) {
  MemoryPlan plan = given;
  rehearse_bf16(plan);
  for (const PlanCandidate& candidate : plan_candidates(plan)) {
    if (candidate.measures.saved == MemoryOptions::Saved::offloaded)
      continue;  // no law predicts which tensors are large enough
    const bool as_it_is = candidate.measures == MemoryOptions{};
    const auto guess = static_cast<double>(peak_with(plan, candidate.measures));
    if (guess > (as_it_is ? 1.0 : 1.05) * static_cast<double>(bytes)) continue;
    auto own = planned(candidate.recipe, plan);
    if (own && own->peak_bytes() <= bytes)
      return FittingRecipe{candidate.recipe, *std::move(own), candidate.time_factor, candidate.changes};
  }
  return {};
}

}  // namespace bellows::train
