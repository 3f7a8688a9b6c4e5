#include "bellows/plan/strategy.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "bellows/core/stats.h"
#include "bellows/plan/candidates.h"
#include "bellows/plan/context_strategy.h"
#include "bellows/plan/pipeline_strategy.h"
#include "bellows/plan/tensor_strategy.h"
#include "bellows/train/recipe/rank_keys.h"

namespace bellows::train {

namespace {

using Precision = MemoryOptions::Precision;
using State = MemoryOptions::State;

constexpr size_t zero3_row = 3;
constexpr int64_t most_ranks = 1024;

std::string memory_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

/// The settings without which training on several ranks rejects this stage, or its memory is not predicted
/// (optimizer_in_backward).
std::string settings_for_stage(const Recipe& recipe, int stage) {
  std::vector<std::string> settings;
  const auto needs = [&](bool wrong, const char* setting) {
    if (wrong) settings.emplace_back(setting);
  };
  needs(recipe.optimizer_in_backward, "optimizer_in_backward: false");
  needs(recipe.gradient_accumulation_dtype != "auto", "gradient_accumulation_dtype: auto");
  needs(recipe.sample_stats, "sample_stats: false");
  needs(stage >= 1 && !train::whole_parameters_conflict(recipe).empty(), "an elementwise optimizer such as adamw");
  needs(stage >= 2 && recipe.gradient_compression != "none", "gradient_compression: none");
  needs(stage >= 2 && recipe.reproducible_ranks > 0 && recipe.max_grad_norm > 0, "max_grad_norm: 0");
  return c10::Join(" and ", settings);
}

/// Whether the technique only saves memory: the same optimizer, and the same samples per step.
bool only_saves_memory(const MemoryOptions& measures) {
  return measures.stage == 0 && measures.shrink == 1 && !measures.in_backward && measures.state != State::factored &&
         measures.state != State::one_moment;
}

/// Returns false if `to` already has a different value.
template <class Value>
bool set_once(Value& to, const Value& value, const Value& unset) {
  if (value == unset) return true;
  if (to != unset) return false;
  to = value;
  return true;
}

/// Returns false if `to` already contains a technique of the same kind.
bool add_technique(MemoryOptions& to, const MemoryOptions& technique) {
  const MemoryOptions none;
  return set_once(to.precision, technique.precision, none.precision) &&
         set_once(to.state, technique.state, none.state) && set_once(to.saved, technique.saved, none.saved) &&
         set_once(to.accumulate, technique.accumulate, none.accumulate);
}

/// Predicts strategies of one plan.
class StrategyPredictor {
 public:
  StrategyPredictor(const MemoryPlan& plan, const Situation& situation, int64_t ranks, double bytes_per_second)
      : plan_(plan), situation_(situation), ranks_(ranks), bytes_per_second_(bytes_per_second) {}

  int64_t peak(const MemoryOptions& measures) const {
    // If the recipe itself shards, the plan's peak without measures is that of the recipe's stage.
    const int64_t sharded_already = measures.stage > 0 ? 0 : plan_.communication - plan_.saved_by_sharding;
    return peak_with(plan_, measures) - sharded_already;
  }

  /// Adds a ZeRO stage on all ranks.
  MemoryOptions with_stage(int stage, MemoryOptions measures = {}) const {
    measures.stage = stage;
    measures.ranks = stage > 0 ? ranks_ : 1;
    return measures;
  }

  StrategyRow row(const MemoryOptions& measures) const {
    MemoryOptions techniques = measures;
    techniques.stage = 0;
    StrategyRow row{.measures = measures};
    row.data_parallel = measures.stage == 0 ? "ddp" : c10::str("zero", measures.stage);
    if (techniques != MemoryOptions{.ranks = measures.ranks}) row.techniques = to_string(techniques);
    row.needs = settings_for_stage(plan_.recipe, measures.stage);
    row.bytes_per_rank = peak(measures);
    row.fits = row.bytes_per_rank <= situation_.capacity;
    row.bytes_sent = bytes_sent(measures);
    row.exchange_seconds = exchange_seconds(measures);
    row.compute_seconds = situation_.step_seconds * compute_factor(measures);
    return row;
  }

  /// Returns a row for each technique that saves memory in addition to ZeRO-3, the cheapest first.
  std::vector<StrategyRow> techniques(int64_t zero3_bytes) const {
    std::vector<StrategyRow> rows;
    for (const PredictedTechnique& technique : predict_techniques(plan_, ranks_)) {
      const bool accumulates = technique.measures.accumulate > 1;  // added below
      if (only_saves_memory(technique.measures) && !accumulates) rows.push_back(row(with_stage(3, technique.measures)));
    }
    for (int64_t k = 2; k <= plan_.size.batch && plan_.size.batch % k == 0; k *= 2)
      rows.push_back(row(with_stage(3, {.accumulate = k})));
    std::erase_if(rows, [&](const StrategyRow& row) { return row.bytes_per_rank >= zero3_bytes; });
    std::stable_sort(rows.begin(), rows.end(), [this](const StrategyRow& a, const StrategyRow& b) {
      return cost(a.measures) < cost(b.measures);
    });
    return rows;
  }

  /// Returns the combination with the lowest cost that fits. If none fits, returns the one with the least memory.
  StrategyRow combination(std::vector<StrategyRow> techniques, const MemoryOptions& base = {}) const {
    std::vector<MemoryOptions> all = {with_stage(3, base)};
    for (const StrategyRow& technique : techniques) {
      for (size_t i = 0, count = all.size(); i < count; ++i) {
        MemoryOptions both = all[i];
        if (add_technique(both, technique.measures)) all.push_back(both);
      }
    }
    std::stable_sort(techniques.begin(), techniques.end(),
                     [](const StrategyRow& a, const StrategyRow& b) { return a.bytes_per_rank < b.bytes_per_rank; });
    MemoryOptions least = with_stage(3, base);
    for (const StrategyRow& technique : techniques) add_technique(least, technique.measures);
    StrategyRow result = row(least);
    if (!result.fits) return result;  // other combinations need more
    std::stable_sort(all.begin(), all.end(),
                     [this](const MemoryOptions& a, const MemoryOptions& b) { return cost(a) < cost(b); });
    const auto cheapest = std::find_if(all.begin(), all.end(), [this](const MemoryOptions& measures) {
      return peak(measures) <= situation_.capacity;
    });
    return cheapest == all.end() ? result : row(*cheapest);
  }

  /// Returns the smallest power of two above the number of ranks at which the measures fit; 0 if there is none.
  int64_t needed_ranks(MemoryOptions measures) const {
    measures.ranks = most_ranks;
    if (ranks_ >= most_ranks || peak(measures) > situation_.capacity) return 0;
    for (measures.ranks = 2; measures.ranks < most_ranks; measures.ranks *= 2) {
      if (measures.ranks > ranks_ && peak(measures) <= situation_.capacity) break;
    }
    return measures.ranks;
  }

 private:
  int64_t bytes_sent(const MemoryOptions& measures) const {
    int64_t bytes = situation_.gradient_bytes;
    if (measures.precision == Precision::bf16_weights) bytes = std::min(bytes, 2 * plan_.parameters);
    const int64_t passes = plan_.recipe.gradient_accumulation_steps * measures.accumulate;
    return bytes_sent_per_step(measures.stage, ranks_, bytes, passes, plan_.recipe.reshard_after_forward);
  }

  double exchange_seconds(const MemoryOptions& measures) const {
    return bytes_per_second_ > 0 ? static_cast<double>(bytes_sent(measures)) / bytes_per_second_ : 0;
  }

  double compute_factor(MemoryOptions measures) const {
    measures.stage = 0;  // sharding only adds the exchange
    double factor = time_factor(measures, situation_.bf16_arithmetic);
    if (plan_.recipe.precision != "fp32" && measures.precision != Precision::as_it_is)
      factor /= time_factor({.precision = Precision::bf16}, situation_.bf16_arithmetic);  // has bf16 matmuls already
    return factor;
  }

  double cost(const MemoryOptions& measures) const {
    const double factor = expected_cost({.measures = measures, .time_factor = compute_factor(measures)});
    const double exchange = exchange_seconds(measures);
    if (exchange == 0 || situation_.step_seconds == 0) return factor;
    return factor * situation_.step_seconds + exchange;
  }

  const MemoryPlan& plan_;
  const Situation& situation_;
  const int64_t ranks_;
  const double bytes_per_second_;
};

/// Of several numbers of accumulation steps, keeps the smallest one that fits, or the largest one if none fits.
void keep_one_accumulation(std::vector<StrategyRow>& rows) {
  int64_t kept = 1;
  bool fits = false;
  for (const StrategyRow& row : rows) {
    const int64_t steps = row.measures.accumulate;
    if (steps == 1) continue;
    const bool better = row.fits == fits ? (kept == 1 || (fits ? steps < kept : steps > kept)) : row.fits;
    if (better) kept = steps;
    fits = fits || row.fits;
  }
  std::erase_if(
      rows, [kept](const StrategyRow& row) { return row.measures.accumulate > 1 && row.measures.accumulate != kept; });
}

std::optional<size_t> first_that_fits(const std::vector<StrategyRow>& rows) {
  const auto first =
      std::find_if(rows.begin(), rows.end(), [](const StrategyRow& row) { return row.fits && row.needs.empty(); });
  if (first == rows.end()) return {};
  return static_cast<size_t>(first - rows.begin());
}

/// Adds rows that combine ZeRO-3 with memory techniques.
void add_techniques(StrategyChoice& choice, const StrategyPredictor& predictor) {
  std::vector<StrategyRow> techniques = predictor.techniques(choice.rows[zero3_row].bytes_per_rank);
  const bool enough = first_that_fits(choice.rows) || first_that_fits(techniques);
  const StrategyRow combined = enough || techniques.empty() ? StrategyRow{} : predictor.combination(techniques);
  keep_one_accumulation(techniques);
  choice.rows.insert(choice.rows.end(), techniques.begin(), techniques.end());
  const auto is_combined = [&](const StrategyRow& row) { return row.measures == combined.measures; };
  if (combined.measures.stage == 3 && std::none_of(choice.rows.begin(), choice.rows.end(), is_combined))
    choice.rows.push_back(combined);
}

/// Adds rows that divide the model or sequences. Of tensor and context parallelism, the row that sends less is first.
void add_divisions(StrategyChoice& choice, const MemoryPlan& plan, const Situation& situation) {
  std::vector<StrategyRow> rows;
  const auto add = [&](const auto& strategy) {
    if (auto row = strategy(plan, situation, choice.ranks, choice.bytes_per_second)) rows.push_back(std::move(*row));
  };
  add(tensor_strategy);
  add(context_strategy);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const StrategyRow& a, const StrategyRow& b) { return a.bytes_sent < b.bytes_sent; });
  add(pipeline_strategy);
  for (StrategyRow& row : rows) {
    row.needs = choice.rows.front().needs;  // also with DDP
    choice.rows.push_back(std::move(row));
  }
}

/// Adds rows that keep the shards in files or on the host if nothing else fits.
void add_offloading(StrategyChoice& choice, const StrategyPredictor& predictor, const Recipe& recipe) {
  const bool has_state = recipe.optimizer != "sgd" || recipe.momentum > 0;
  if (first_that_fits(choice.rows) || !has_state) return;
  const MemoryOptions offloaded{.offloaded_shards = true};
  std::vector<StrategyRow> techniques = predictor.techniques(choice.rows[zero3_row].bytes_per_rank);
  choice.rows.push_back(predictor.row(predictor.with_stage(3, offloaded)));
  if (!choice.rows.back().fits && !techniques.empty())
    choice.rows.push_back(predictor.combination(std::move(techniques), offloaded));
}

/// The recipe keys for offloaded shards.
std::string offload_keys(bool on_cpu) {
  return on_cpu ? "Set offload_parameters: file, offload_state: file and offload_shard_folder."
                : "Set offload_parameters: host and offload_state: host.";
}

void find_needed_ranks(StrategyChoice& choice, const StrategyPredictor& predictor) {
  for (const StrategyRow& row : choice.rows) {
    if (row.measures.stage < 3 || !row.needs.empty()) continue;
    choice.needed_ranks = predictor.needed_ranks(row.measures);
    choice.needed = choice.needed_ranks > 0 ? row.title() : "";
    if (choice.needed_ranks > 0) return;
  }
}

std::string reason_for_no_strategy(const StrategyChoice& choice) {
  const StrategyRow* least = &choice.rows.front();
  for (const StrategyRow& row : choice.rows) {
    if (row.needs.empty() && row.bytes_per_rank < least->bytes_per_rank) least = &row;
  }
  std::string text = c10::str("No strategy fits into ", memory_text(choice.capacity), " per rank: even ",
                              least->title(), " needs ", memory_text(least->bytes_per_rank), ". ");
  const std::string& setting = choice.rows[zero3_row].needs;
  if (!setting.empty()) return text + "ZeRO-3 is predicted only with " + setting + " in the recipe.";
  if (choice.needed_ranks == 0)
    return text + "More ranks are not enough: use a smaller batch, or devices with more memory.";
  return c10::str(text, "With the same batch per rank, ", choice.needed, " would fit on ", choice.needed_ranks,
                  " ranks.");
}

std::string reason_for_axis(const StrategyRow& row) {
  if (row.axis() == "pipeline") return "A pipeline divides the layers among the ranks";
  return row.axis() == "context" ? "Context parallelism divides the activations of each sequence"
                                 : "Tensor parallelism divides each layer";
}

/// The recipe keys for a row with a mesh. Params: batch – of one rank
std::string keys_for_axis(const StrategyRow& row, int64_t batch, int64_t accumulated) {
  const std::string mesh = c10::str("Set mesh: {", row.mesh, "}");
  if (row.measures.accumulate == 1) return mesh + ".";
  return c10::str(mesh, ", batch_size: ", batch,
                  " and gradient_accumulation_steps: ", row.measures.accumulate * accumulated, ".");
}

std::string reason_for(const StrategyChoice& choice, const MemoryPlan& plan) {
  if (!choice.chosen) return reason_for_no_strategy(choice);
  const StrategyRow &ddp = choice.rows.front(), &best = choice.rows[*choice.chosen];
  const std::string capacity = memory_text(choice.capacity), needed = memory_text(best.bytes_per_rank);
  if (!best.mesh.empty())
    return c10::str("ZeRO-3 needs ", memory_text(choice.rows[zero3_row].bytes_per_rank), " per rank, more than ",
                    capacity, ", and no memory technique is enough. ", reason_for_axis(best), " and needs ", needed,
                    ". ", keys_for_axis(best, plan.size.batch, plan.recipe.gradient_accumulation_steps));
  if (best.measures.stage == 0)
    return c10::str("DDP needs ", needed, " per rank and fits into ", capacity,
                    ". ZeRO would save memory that is not needed.");
  if (best.techniques.empty())
    return c10::str("DDP needs ", memory_text(ddp.bytes_per_rank), " per rank, more than ", capacity, ". ",
                    best.title(), " is the first stage that fits, with ", needed, ".");
  if (best.measures.offloaded_shards)
    return c10::str("Even ZeRO-3 needs ", memory_text(choice.rows[zero3_row].bytes_per_rank), " per rank, more than ",
                    capacity, ", and no technique that keeps the shards in memory is enough. With ", best.techniques,
                    ", it needs ", needed, ". ", offload_keys(plan.recipe.device.starts_with("cpu")));
  return c10::str("Even ZeRO-3 needs ", memory_text(choice.rows[zero3_row].bytes_per_rank), " per rank, more than ",
                  capacity, ". With ", best.techniques, ", it needs ", needed,
                  " and fits at the lowest expected cost.");
}

}  // namespace

std::string StrategyRow::title() const {
  const std::string name = !mesh.empty()         ? axis() + " parallelism"
                           : measures.stage == 0 ? "DDP"
                                                 : c10::str("ZeRO-", measures.stage);
  return techniques.empty() ? name : name + " with " + techniques;
}

int64_t bytes_sent_per_step(int stage, int64_t ranks, int64_t gradient_bytes, int64_t passes,
                            bool reshard_after_forward) {
  TORCH_CHECK_VALUE(stage >= 0 && stage <= 3 && ranks >= 1 && gradient_bytes >= 0 && passes >= 1,
                    "bytes_sent_per_step: expected a stage from 0 to 3, and at least one rank and one pass, got stage ",
                    stage, ", ", ranks, " ranks, ", gradient_bytes, " bytes and ", passes, " passes.");
  const int64_t factors[] = {2, 3, 1 + passes, (reshard_after_forward ? 3 : 2) * passes};
  // In floating point, because the product of three integers may overflow.
  const double share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  return std::llround(static_cast<double>(factors[stage]) * share * static_cast<double>(gradient_bytes));
}

StrategyChoice choose_strategy(const MemoryPlan& plan, const Situation& situation, int64_t ranks,
                               double link_bytes_per_second) {
  TORCH_CHECK_VALUE(ranks >= 2, "choose_strategy: expected at least 2 ranks, got ", ranks, ".");
  TORCH_CHECK_VALUE(link_bytes_per_second >= 0, "choose_strategy: expected a bandwidth of at least 0 bytes/s, got ",
                    link_bytes_per_second, ".");
  const StrategyPredictor predictor(plan, situation, ranks, link_bytes_per_second);
  StrategyChoice choice{.ranks = ranks, .capacity = situation.capacity, .bytes_per_second = link_bytes_per_second};
  for (int stage = 0; stage <= 3; ++stage) choice.rows.push_back(predictor.row(predictor.with_stage(stage)));
  const bool shards = choice.rows[zero3_row].needs.empty();
  if (shards) add_techniques(choice, predictor);
  add_divisions(choice, plan, situation);
  if (shards) add_offloading(choice, predictor, plan.recipe);
  choice.chosen = first_that_fits(choice.rows);
  if (!choice.chosen) find_needed_ranks(choice, predictor);
  choice.reason = reason_for(choice, plan);
  return choice;
}

}  // namespace bellows::train
