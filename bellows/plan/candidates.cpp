#include "bellows/plan/candidates.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "bellows/system/machine.h"
#include "bellows/techniques/technique.h"

namespace bellows::train {

namespace {

using Precision = MemoryOptions::Precision;
using Saved = MemoryOptions::Saved;
using State = MemoryOptions::State;

/// A measure, and the row of the table of techniques that applies it; null: unchanged.
template <class Kind>
struct Choice {
  Kind kind;
  const char* technique;
};
constexpr Choice<Precision> precision_choices[] = {
    {Precision::as_it_is, nullptr}, {Precision::bf16, "bf16_autocast"}, {Precision::bf16_weights, "bf16_weights"}};
constexpr Choice<State> state_choices[] = {{State::as_it_is, nullptr},
                                           {State::eight_bit, "int8_state"},
                                           {State::four_bit, "int4_state"},
                                           {State::factored, "adafactor"}};
constexpr Choice<Saved> saved_choices[] = {{Saved::as_it_is, nullptr},
                                           {Saved::in_bf16, "bf16_activations"},
                                           {Saved::in_int8, "int8_activations"},
                                           {Saved::in_int4, "int4_activations"},
                                           {Saved::recomputed, "recompute"},
                                           {Saved::half_recomputed, "recompute_budget"},
                                           {Saved::offloaded, "activation_offload"}};

class Combinations {
 public:
  explicit Combinations(const MemoryPlan& plan) : plan_(plan) {}

  std::vector<PlanCandidate> all() {
    for (const auto& precision : precision_choices) {
      for (const auto& state : state_choices) {
        for (const auto& saved : saved_choices) {
          add(precision, state, saved, false);
          if (plan_.ranks == 1) add(precision, state, saved, true);
        }
      }
    }
    std::stable_sort(result_.begin() + 1, result_.end(), [](const PlanCandidate& a, const PlanCandidate& b) {
      return std::pair(a.other_training, expected_cost(a)) < std::pair(b.other_training, expected_cost(b));
    });
    return std::move(result_);
  }

 private:
  void add(const Choice<Precision>& precision, const Choice<State>& state, const Choice<Saved>& saved,
           bool in_backward) {
    if (precision.technique && plan_.recipe.precision == "fp16") return;  // fp16 has its own range and loss scaling
    PlanCandidate candidate{.recipe = plan_.recipe, .measures = {precision.kind, state.kind, saved.kind}};
    candidate.measures.in_backward = in_backward;
    const char* stepping = in_backward ? "step_in_backward" : nullptr;
    for (const char* name : {precision.technique, state.technique, saved.technique, stepping}) {
      if (name && !take(candidate, name)) return;
    }
    candidate.other_training = state.kind == State::factored;
    for (int64_t k = 1; k <= plan_.size.batch && plan_.size.batch % k == 0; k *= 2) add_parts(candidate, k);
  }

  /// Returns false if the technique does not apply or changes nothing.
  bool take(PlanCandidate& candidate, const char* name) {
    const Technique& technique = technique_table().at(name);
    const Recipe before = candidate.recipe;
    if (technique.obstacle && !obstacle(technique, before).empty()) return false;
    technique.apply(candidate.recipe);
    candidate.techniques.emplace_back(name);
    return !(candidate.recipe == before);
  }

  /// Checks once whether the model has blocks, because that requires building the model and does not depend on other
  /// measures.
  std::string obstacle(const Technique& technique, const Recipe& recipe) {
    if (!technique.name.starts_with("recompute")) return technique.obstacle(recipe, machine_);
    if (!no_blocks_) no_blocks_ = technique.obstacle(recipe, machine_);
    return *no_blocks_;
  }

  void add_parts(PlanCandidate candidate, int64_t parts) {
    candidate.measures.accumulate = parts;
    candidate.recipe.gradient_accumulation_steps *= parts;
    candidate.recipe.batch_size = plan_.size.batch * plan_.ranks / parts;
    if (parts > 1) candidate.techniques.emplace_back("accumulation");
    try {
      candidate.recipe.validate();
    } catch (const c10::ValueError&) {
      return;  // invalid combination of keys
    }
    candidate.changes = to_string(candidate.measures);
    if (candidate.other_training) candidate.changes += " (another optimizer)";
    candidate.time_factor = time_factor(candidate.measures, bf16_arithmetic_);
    if (plan_.recipe.precision != "fp32" &&
        candidate.measures.precision != Precision::as_it_is)  // the recipe already uses bf16 matmuls
      candidate.time_factor /= time_factor({.precision = Precision::bf16}, bf16_arithmetic_);
    const int64_t waiting = candidate.recipe.num_workers == 0 ? 0 : plan_.waiting / parts;
    candidate.predicted_bytes = peak_with(plan_, candidate.measures) + waiting;
    result_.push_back(std::move(candidate));
  }

  const MemoryPlan& plan_;
  const Machine machine_ = this_machine();
  const bool bf16_arithmetic_ = machine_.has_bf16_arithmetic();
  std::optional<std::string> no_blocks_;
  std::vector<PlanCandidate> result_;
};

}  // namespace

double expected_cost(const PlanCandidate& candidate) {
  constexpr double a_step_of_roughness = 1.06;
  return candidate.time_factor * std::pow(a_step_of_roughness, roughness(candidate.measures));
}

std::vector<PlanCandidate> plan_candidates(const MemoryPlan& plan) {
  return Combinations(plan).all();
}

std::vector<PlanCandidate> plan_candidates(const Recipe& recipe, int64_t length) {
  MemoryPlan plan = plan_memory(recipe, {recipe.batch_size, length});
  rehearse_bf16(plan);
  return plan_candidates(plan);
}

}  // namespace bellows::train
