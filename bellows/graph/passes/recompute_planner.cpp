#include "bellows/graph/passes/recompute_planner.h"

#include <algorithm>
#include <climits>
#include <map>
#include <set>
#include <unordered_map>

#include "bellows/graph/passes/expression.h"
#include "bellows/graph/passes/work_model.h"

namespace bellows::graph::detail {
namespace {

/// Plans are made for 0.95, 0.90, … of the original peak.
constexpr int plan_levels = 20;
/// Maximum number of instructions that one step repeats.
constexpr size_t most_repeated = 48;
/// Values below this fraction of the original peak are not worth a step.
constexpr double least_fraction = 1.0 / 2000;
/// Instructions that are at most this far apart are likely to be fused.
constexpr int fusion_distance = 16;

double total_work(const Program& program) {
  double total = 0;
  for (const Instruction& one : program.instructions) total += work_of(one);
  return total;
}

double excess_over(const LiveBytes& live, double target) {
  double total = 0;
  for (const int64_t bytes : live.at) total += std::max(0.0, static_cast<double>(bytes) - target);
  return total;
}

bool is_training_norm(const Instruction& one) {
  return calls(one, "aten::native_batch_norm") && one.arguments[5].number < 0 && one.arguments[5].constant.isBool() &&
         one.arguments[5].constant.toBool();
}

bool outlives_or_shares(const LiveBytes& live, ValueId value) {
  return !live.uses.is_free(value);
}

/// Removes instructions without effect whose results are not read.
void drop_unread(Program& program) {
  std::vector<int> reads(program.values.size(), 0);
  for (const auto& output : program.outputs) ++reads[output.value];
  for (const Instruction& one : program.instructions) {
    for_each_operand(one, [&](const Operand& operand) { ++reads[operand.value]; });
    for (const auto& update : one.updates) ++reads[update.before];
  }
  std::vector<bool> dead(program.instructions.size(), false);
  for (size_t i = program.instructions.size(); i-- > 0;) {
    const Instruction& one = program.instructions[i];
    if (!one.late && !is_pure(one)) continue;
    bool read = one.results.empty();
    for_each_result(one, [&](const Operand& operand) { read = read || reads[operand.value] > 0; });
    if (read) continue;
    dead[i] = true;
    for_each_operand(one, [&](const Operand& operand) { --reads[operand.value]; });
  }
  erase_instructions(program, dead);
}

}  // namespace

std::optional<Instruction> repeatable(const Instruction& instruction) {
  if (is_pure(instruction)) return instruction;
  if (!is_training_norm(instruction)) return std::nullopt;
  // In training mode, the results do not depend on the running statistics.
  Instruction made = instruction;
  made.updates.clear();
  for (const size_t statistics : {3, 4}) made.arguments[statistics].operands = {Operand{}};
  return made;
}

int RecomputePlanner::State::order_of(const Instruction& instruction) const {
  int found = -1;
  for_each_result(instruction, [&](const Operand& result) {
    if (found < 0) found = order[origin[result.value]];
  });
  return found;
}

LiveBytes::LiveBytes(const Program& program, const std::vector<bool>& is_weightless)
    : uses(program),
      at(program.instructions.size(), 0),
      size(program.values.size(), 0),
      last(program.values.size(), -1) {
  const size_t count = program.values.size();
  std::vector<ValueId> root(count);
  for (size_t value = 0; value < count; ++value) root[value] = static_cast<ValueId>(value);
  for (const Instruction& one : program.instructions) {
    for (const auto& update : one.updates) root[update.after] = root[update.before];
  }
  std::vector<int> end(count, -1);
  std::vector<bool> returned(count, false);
  for (size_t value = 0; value < count; ++value) {
    const auto& readers = uses.readers[value];
    last[value] = uses.outputs[value]
                      ? INT_MAX
                      : std::max({uses.maker[value], uses.overwriter[value], readers.empty() ? -1 : readers.back()});
    end[root[value]] = std::max(end[root[value]], last[value]);
    if (uses.outputs[value]) returned[root[value]] = true;
  }
  std::vector<int64_t> change(at.size() + 1, 0);
  for (size_t value = 0; value < count; ++value) {
    const ValueId block = root[value];
    if (uses.maker[block] < 0 || returned[block]) continue;
    size[value] = static_cast<int64_t>(program.values[block].nbytes);
    const bool weightless = block < static_cast<ValueId>(is_weightless.size()) && is_weightless[block];
    if (weightless || block != static_cast<ValueId>(value)) continue;
    change[uses.maker[block]] += size[value];
    change[end[block] + 1] -= size[value];
  }
  int64_t now = 0;
  for (size_t i = 0; i < at.size(); ++i) at[i] = now += change[i];
}

int64_t LiveBytes::peak() const {
  return at.empty() ? 0 : *std::max_element(at.begin(), at.end());
}

/// A value that is freed between two uses, and the instructions that compute it again.
struct RecomputePlanner::Candidate {
  ValueId value = no_value;
  bool keeps = false;                 ///< keeps operands longer instead of computing them again
  int place = 0;                      ///< the second use: copies are inserted before this instruction
  std::map<int, int> instructions{};  ///< by their order in the original program
  double saved = 0, work = 0;         ///< bytes times instructions with too much memory; microseconds

  double score() const { return saved / (work + 1e-3); }
};

/// Finds the best candidate for one step.
class RecomputePlanner::Search {
 public:
  /// Params: target – the bytes that the peak should not exceed
  Search(const State& state, const LiveBytes& live, double target) : state_(state), live_(live) {
    hot_.resize(live.at.size() + 1, 0);
    for (size_t i = 0; i < live.at.size(); ++i)
      hot_[i + 1] = hot_[i] + (static_cast<double>(live.at[i]) > target ? 1 : 0);
  }

  std::optional<Candidate> best(const std::set<std::pair<ValueId, bool>>& without, int64_t least_bytes) const {
    std::optional<Candidate> found;
    for (size_t value = 0; value < live_.size.size(); ++value) {
      const auto id = static_cast<ValueId>(value);
      if (live_.size[value] < least_bytes || outlives_or_shares(live_, id) || live_.uses.maker[id] < 0) continue;
      for (const bool keeps : {false, true}) {
        if (without.contains({id, keeps})) continue;
        const auto candidate = candidate_for(id, keeps);
        if (candidate && candidate->saved > 0 && (!found || candidate->score() > found->score())) found = candidate;
      }
    }
    return found;
  }

  /// Returns: the version of a value that an instruction before `place` can read, and whether it is needed until there
  /// anyway. no_value if all versions are overwritten before
  static std::pair<ValueId, bool> version_at(const State& state, const LiveBytes& live, ValueId value, int place) {
    ValueId latest = no_value;
    for (const ValueId version : state.versions[state.origin[value]]) {
      const int maker = live.uses.maker[version], end = live.uses.overwriter[version];
      const bool is_gone = maker < 0 && !state.is_outer[version];
      if (is_gone || maker >= place || (end >= 0 && end < place)) continue;
      if (live.last[version] >= place) return {version, true};
      if (latest == no_value || maker > live.uses.maker[latest]) latest = version;
    }
    return {latest, false};
  }

 private:
  /// Number of instructions with too much memory between two instructions.
  int64_t hot_between(int first, int last) const {
    const int end = std::min(last, static_cast<int>(hot_.size()) - 1);
    return end > first + 1 ? hot_[end] - hot_[first + 1] : 0;
  }

  std::optional<Candidate> candidate_for(ValueId value, bool keeps) const {
    Candidate candidate{.value = value, .keeps = keeps};
    int before = live_.uses.maker[value], from = 0;
    int64_t most = 0;
    for (const int use : live_.uses.readers[value]) {
      const int64_t gap = hot_between(before, use);
      if (gap > most) {
        most = gap;
        from = before;
        candidate.place = use;
      }
      before = use;
    }
    if (most == 0) return std::nullopt;
    candidate.saved = static_cast<double>(live_.size[value]) * static_cast<double>(most);
    std::set<ValueId> kept;
    if (!add(live_.uses.maker[value], candidate, kept)) return std::nullopt;
    const bool moves = from == live_.uses.maker[value] && is_only_result(value);
    if (moves) candidate.work -= work_of(state_.program.instructions[from]);
    return candidate;
  }

  /// True if no other result of the instruction that computes the value is needed.
  bool is_only_result(ValueId value) const {
    const Instruction& one = state_.program.instructions[live_.uses.maker[value]];
    bool only = is_pure(one) || one.late;
    for_each_result(one, [&](const Operand& result) {
      only = only && (result.value == value || live_.last[result.value] <= live_.uses.maker[value]);
    });
    return only;
  }

  /// Adds an instruction to the copies, and all instructions that compute operands that are not available.
  bool add(int instruction, Candidate& candidate, std::set<ValueId>& kept) const {
    const int order = state_.order_of(state_.program.instructions[instruction]);
    if (order < 0 || candidate.instructions.contains(order)) return order >= 0;
    if (candidate.instructions.size() == most_repeated) return false;
    const auto copy = repeatable(state_.program.instructions[instruction]);
    if (!copy) return false;
    candidate.instructions.emplace(order, instruction);
    candidate.work += work_of(*copy);
    bool possible = true;
    for_each_operand(
        *copy, [&](const Operand& operand) { possible = possible && make_available(operand.value, candidate, kept); });
    return possible;
  }

  bool make_available(ValueId value, Candidate& candidate, std::set<ValueId>& kept) const {
    const auto [version, available] = version_at(state_, live_, value, candidate.place);
    if (available) return true;
    const int maker = live_.uses.maker[version == no_value ? value : version];
    const bool repeats = maker >= 0 && repeatable(state_.program.instructions[maker]);
    if (repeats && (!candidate.keeps || version == no_value)) return add(maker, candidate, kept);
    if (version == no_value) return false;
    if (kept.insert(version).second)
      candidate.saved -= extra_bytes(version) * static_cast<double>(hot_between(live_.last[version], candidate.place));
    return true;
  }

  /// The bytes that a value needs if it is kept longer. The caller may release an input after its last use.
  double extra_bytes(ValueId value) const {
    const bool is_input = state_.is_outer[value] && !state_.is_constant[value];
    return static_cast<double>(is_input ? static_cast<int64_t>(state_.program.values[value].nbytes)
                                        : live_.size[value]);
  }

  const State& state_;
  const LiveBytes& live_;
  std::vector<int64_t> hot_;  ///< number of instructions with too much memory before each instruction
};

RecomputePlanner::RecomputePlanner(const Program& program, bool fuses)
    : state_{.program = program}, fuses_(fuses), original_size_(program.instructions.size()) {
  for (size_t value = 0; value < program.values.size(); ++value) {
    state_.origin.push_back(static_cast<ValueId>(value));
    state_.versions.push_back({static_cast<ValueId>(value)});
  }
  state_.is_outer.resize(program.values.size(), false);
  for (const ValueId input : program.inputs) state_.is_outer[input] = true;
  state_.is_constant.resize(program.values.size(), false);
  for (const auto& constant : program.constants)
    state_.is_outer[constant.value] = state_.is_constant[constant.value] = true;
  is_fusible_.resize(program.values.size(), false);
  state_.order.resize(program.values.size(), -1);
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const bool fusible = fuses && expression_of(program.instructions[i]);
    for_each_result(program.instructions[i], [&](const Operand& result) {
      is_fusible_[result.value] = fusible;
      if (state_.order[result.value] < 0) state_.order[result.value] = static_cast<int>(i);
    });
  }
  original_work_ = total_work(program);
  original_peak_ = live_bytes_of(state_).peak();
}

LiveBytes RecomputePlanner::live_bytes_of(const State& state) const {
  if (!fuses_) return LiveBytes(state.program);
  const Uses uses(state.program);
  const auto fusible = [&](int instruction) {
    const Instruction& one = state.program.instructions[instruction];
    return !one.results.empty() && !one.results[0].operands.empty() && one.results[0].operands[0].value >= 0 &&
           is_fusible_[state.origin[one.results[0].operands[0].value]];
  };
  std::vector<bool> weightless(state.program.values.size(), false);
  for (size_t value = 0; value < weightless.size(); ++value) {
    const auto& readers = uses.readers[value];
    const int maker = uses.maker[value];
    weightless[value] = maker >= 0 && !readers.empty() && uses.is_free(static_cast<ValueId>(value)) &&
                        readers.back() - maker <= fusion_distance && fusible(maker) &&
                        std::all_of(readers.begin(), readers.end(), fusible);
  }
  return LiveBytes(state.program, weightless);
}

RecomputePlanner::State RecomputePlanner::repeated(const State& state, const Candidate& candidate,
                                                   const LiveBytes& live) {
  State made = state;
  std::unordered_map<ValueId, ValueId> fresh;  // by origin
  std::vector<Instruction> copies;
  for (const auto& [order, instruction] : candidate.instructions) {
    Instruction copy = *repeatable(state.program.instructions[instruction]);
    copy.late = true;
    for_each_operand(copy, [&](Operand& operand) {
      const auto known = fresh.find(made.origin[operand.value]);
      operand.value =
          known != fresh.end() ? known->second : Search::version_at(state, live, operand.value, candidate.place).first;
    });
    for_each_result(copy, [&](Operand& result) {
      const auto facts = made.program.values[result.value];
      const ValueId origin = made.origin[result.value];
      const auto [known, added] = fresh.emplace(origin, no_value);
      if (added) {
        known->second = add_value(made.program, facts.geometry, facts.nbytes);
        made.origin.push_back(origin);
        made.versions.emplace_back();
        made.is_outer.push_back(false);
        made.is_constant.push_back(false);
        made.versions[origin].push_back(known->second);
      }
      result.value = known->second;
    });
    copies.push_back(std::move(copy));
  }
  auto& all = made.program.instructions;
  for (size_t i = candidate.place; i < all.size(); ++i) {
    for_each_operand(all[i], [&](Operand& operand) {
      const auto known = fresh.find(made.origin[operand.value]);
      if (known != fresh.end() && !outlives_or_shares(live, operand.value)) operand.value = known->second;
    });
  }
  all.insert(all.begin() + candidate.place, std::make_move_iterator(copies.begin()),
             std::make_move_iterator(copies.end()));
  drop_unread(made.program);
  return made;
}

/// Takes steps until the estimated peak is below the target, or no step helps. Returns whether the program changed.
bool RecomputePlanner::improve(double target) {
  bool changed = false;
  std::set<std::pair<ValueId, bool>> failed;
  const auto least_bytes =
      std::max<int64_t>(1, static_cast<int64_t>(least_fraction * static_cast<double>(original_peak_)));
  LiveBytes live = live_bytes_of(state_);
  while (static_cast<double>(live.peak()) > target && state_.program.instructions.size() < 4 * original_size_) {
    const auto candidate = Search(state_, live, target).best(failed, least_bytes);
    if (!candidate) break;
    State next = repeated(state_, *candidate, live);
    LiveBytes then = live_bytes_of(next);
    if (excess_over(then, target) < excess_over(live, target)) {
      state_ = std::move(next);
      live = std::move(then);
      changed = true;
    } else {
      failed.emplace(candidate->value, candidate->keeps);
    }
  }
  return changed;
}

std::optional<RecomputePlanner::Plan> RecomputePlanner::next() {
  while (++level_ < plan_levels) {
    if (!improve(static_cast<double>(original_peak_) * (1 - static_cast<double>(level_) / plan_levels))) continue;
    return Plan{
        .program = state_.program,
        .repeated = static_cast<int64_t>(state_.program.instructions.size()) - static_cast<int64_t>(original_size_),
        .work = total_work(state_.program) - original_work_};
  }
  return std::nullopt;
}

}  // namespace bellows::graph::detail
