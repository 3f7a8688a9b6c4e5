#include "bellows/graph/execution/memory_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>

#include "bellows/core/round_up.h"
#include "bellows/graph/passes/functionalize.h"

namespace bellows::graph {
namespace {

using Home = MemoryPlan::Home;

constexpr size_t alignment = 64;

/// A part of the arena that is needed from instruction `first` to instruction `last`.
struct Piece {
  size_t bytes = 0;
  int first = 0, last = 0;
  size_t* offset = nullptr;
};

/// Returns: the smallest sufficient gap between the pieces that are needed at the same time and already placed
size_t best_gap(const Piece& piece, const std::vector<const Piece*>& placed_by_offset) {
  size_t best = SIZE_MAX, best_size = SIZE_MAX, free_from = 0;
  for (const Piece* other : placed_by_offset) {
    if (other->last < piece.first || piece.last < other->first) continue;
    if (*other->offset > free_from) {
      const size_t gap = *other->offset - free_from;
      if (gap >= piece.bytes && gap < best_size) {
        best = free_from;
        best_size = gap;
      }
    }
    free_from = std::max(free_from, *other->offset + other->bytes);
  }
  return best == SIZE_MAX ? free_from : best;
}

/// Places the pieces one after another. Returns the size of the arena.
size_t place(const std::vector<const Piece*>& pieces) {
  std::vector<const Piece*> placed;
  placed.reserve(pieces.size());
  size_t total = 0;
  for (const Piece* piece : pieces) {
    *piece->offset = best_gap(*piece, placed);
    total = std::max(total, *piece->offset + piece->bytes);
    const auto behind = std::upper_bound(placed.begin(), placed.end(), *piece->offset,
                                         [](size_t offset, const Piece* other) { return offset < *other->offset; });
    placed.insert(behind, piece);
  }
  return total;
}

/// Tries several orders, because none is good for all programs, and uses the best: large pieces first; pieces that last
/// to the end first, in order or large ones first; pieces that are large for a long time first.
size_t place_well(const std::vector<Piece>& pieces, int end) {
  using Key = std::tuple<double, double>;
  const auto bytes = [](const Piece& piece) { return static_cast<double>(piece.bytes); };
  const auto stays = [&](const Piece& piece) { return piece.last >= end; };
  const std::array<std::function<Key(const Piece&)>, 4> orders{
      [&](const Piece& piece) { return Key(0, -bytes(piece)); },
      [&](const Piece& piece) { return Key(!stays(piece), stays(piece) ? piece.first : -bytes(piece)); },
      [&](const Piece& piece) { return Key(!stays(piece), -bytes(piece)); },
      [&](const Piece& piece) { return Key(0, -bytes(piece) * std::sqrt(piece.last - piece.first + 1.0)); }};
  std::vector<const Piece*> sorted;
  sorted.reserve(pieces.size());
  for (const Piece& piece : pieces) sorted.push_back(&piece);
  const auto place_by = [&](const auto& key) {
    std::vector<const Piece*> all = sorted;
    std::stable_sort(all.begin(), all.end(), [&](const Piece* a, const Piece* b) { return key(*a) < key(*b); });
    return place(all);
  };
  const auto* best = orders.data();
  size_t least = SIZE_MAX;
  for (const auto& order : orders) {
    if (const size_t total = place_by(order); total < least) least = total, best = &order;
  }
  return place_by(*best);
}

size_t most_at_once(const std::vector<Piece>& pieces) {
  std::map<int, int64_t> change;
  for (const Piece& piece : pieces) {
    change[piece.first] += static_cast<int64_t>(piece.bytes);
    change[piece.last + 1] -= static_cast<int64_t>(piece.bytes);
  }
  int64_t now = 0, most = 0;
  for (const auto& [at, by] : change) most = std::max(most, now += by);
  return static_cast<size_t>(most);
}

class MemoryPlanner {
 public:
  MemoryPlanner(const Program& program, const std::vector<bool>& lent, bool arena)
      : program_(program), lent_(lent), arena_(arena), stays_(program.inputs.size()) {
    plan_.block_of.assign(program.values.size(), -1);
    plan_.blocks.reserve(program.values.size());
    plan_.scratch_offset.assign(program.instructions.size(), 0);
    find_stretches();
  }

  MemoryPlan run() && {
    find_inputs_that_stay();
    for (size_t i = 0; i < program_.inputs.size(); ++i) add(program_.inputs[i], Home::input, -1, static_cast<int>(i));
    for (size_t i = 0; i < program_.constants.size(); ++i)
      add(program_.constants[i].value, Home::constant, -1, static_cast<int>(i));
    for (size_t i = 0; i < program_.instructions.size(); ++i) plan(program_.instructions[i], static_cast<int>(i));
    for (size_t i = 0; i < program_.outputs.size(); ++i)
      hand_out(program_.outputs[i], !lent_.empty() && lent_[i] ? Home::lent : Home::output);
    lay_out();
    return std::move(plan_);
  }

 private:
  /// Blocks of a stretch are needed from its first instruction to its last, because its instructions run at the same
  /// time.
  void find_stretches() {
    const auto& all = program_.instructions;
    const int count = static_cast<int>(all.size());
    first_.resize(all.size());
    last_.resize(all.size());
    for (int i = 0; i < count; ++i)
      first_[i] = i > 0 && all[i].stretch >= 0 && all[i].stretch == all[i - 1].stretch ? first_[i - 1] : i;
    for (int i = count; i-- > 0;) last_[i] = i + 1 < count && first_[i + 1] == first_[i] ? last_[i + 1] : i;
  }

  MemoryPlan::Block& block(ValueId value) { return plan_.blocks[plan_.block_of[value]]; }

  MemoryPlan::Block& add(ValueId value, Home home, int at, int index = -1) {
    plan_.block_of[value] = static_cast<int>(plan_.blocks.size());
    plan_.blocks.push_back({.home = home, .index = index, .nbytes = program_.values[value].nbytes});
    plan_.blocks.back().first = at < 0 ? at : first_[at];
    plan_.blocks.back().last = at < 0 ? at : last_[at];
    return plan_.blocks.back();
  }

  /// A written input stays in place if its last value is written back to it.
  void find_inputs_that_stay() {
    std::map<ValueId, ValueId> next;
    for (const Instruction& one : program_.instructions) {
      for (const auto& update : one.updates) next[update.before] = update.after;
    }
    for (const Program::Output& output : program_.outputs) {
      if (output.input < 0) continue;
      ValueId last = program_.inputs[output.input];
      for (auto found = next.find(last); found != next.end(); found = next.find(last)) last = found->second;
      stays_[output.input] = last == output.value;
    }
  }

  void plan(const Instruction& one, int at) {
    for (const auto& argument : one.arguments) {
      for (const Operand& operand : argument.operands) {
        if (operand.value >= 0) block(operand.value).last = last_[at];
      }
    }
    for (const auto& update : one.updates) plan(update, at);
    for (const auto& result : one.results) {
      for (const Operand& operand : result.operands) {
        if (operand.value < 0) continue;
        if (plan_.block_of[operand.value] < 0)
          add(operand.value, arena_ && (one.kernel || out_form_of(one)) ? Home::arena : Home::allocated, at);
        block(operand.value).last = last_[at];
      }
    }
  }

  void plan(const Instruction::Update& update, int at) {
    MemoryPlan::Block& before = block(update.before);
    const bool kept = before.home == Home::constant || (before.home == Home::input && !stays_[before.index]);
    const int original = plan_.block_of[update.before];
    before.last = last_[at];
    if (kept)
      add(update.after, Home::arena, at).copied = original;
    else
      plan_.block_of[update.after] = original;
  }

  void hand_out(const Program::Output& output, Home home) {
    MemoryPlan::Block& one = block(output.value);
    one.last = MemoryPlan::end;
    if (one.home == Home::arena && output.input < 0) one.home = home;
  }

  void lay_out() {
    std::vector<Piece> pieces;
    pieces.reserve(plan_.blocks.size());
    for (auto& one : plan_.blocks) {
      if (one.home == Home::arena || one.home == Home::lent)
        pieces.push_back({round_up(one.nbytes, alignment), one.first, last_of(one), &one.offset});
    }
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const auto& kernel = program_.instructions[i].kernel;
      if (kernel && kernel->scratch_bytes() > 0)
        pieces.push_back({round_up(kernel->scratch_bytes(), alignment), first_[i], last_[i], &plan_.scratch_offset[i]});
    }
    plan_.least_bytes = most_at_once(pieces);
    plan_.arena_bytes = place_well(pieces, static_cast<int>(program_.instructions.size()));
  }
  int last_of(const MemoryPlan::Block& one) const {
    return std::min(one.last, static_cast<int>(program_.instructions.size()));
  }

  const Program& program_;
  const std::vector<bool>& lent_;
  const bool arena_;
  std::vector<bool> stays_;
  std::vector<int> first_, last_;  ///< first and last instruction of each instruction's stretch
  MemoryPlan plan_;
};

}  // namespace

MemoryPlan MemoryPlan::of(const Program& program, const std::vector<bool>& lent) {
  return MemoryPlanner(program, lent, true).run();
}

MemoryPlan MemoryPlan::without_arena(const Program& program) {
  return MemoryPlanner(program, {}, false).run();
}

}  // namespace bellows::graph
