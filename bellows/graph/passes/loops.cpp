#include <algorithm>
#include <unordered_map>

#include "bellows/graph/execution/schedule.h"
#include "bellows/graph/passes/group_writer.h"
#include "bellows/graph/passes/passes.h"

namespace bellows::graph::detail {
namespace {

/// A row of this many places stays in a core's cache, so that another pass over it is cheap.
constexpr int64_t cached_places = 1 << 14;
/// Maximum number of pointers that a kernel takes.
constexpr size_t most_operands = 48;

/// Properties that determine whether reductions can share a nest of loops.
struct Shape {
  int levels = 0;  ///< passes over the data beyond the first
  int64_t longest = 1;
  std::vector<uint64_t> reduced{};
};

Shape shape_of(const Expression& expression) {
  Shape shape;
  std::vector<int> level(expression.terms.size(), 0);
  for (size_t i = 0; i < level.size(); ++i) {
    const Term& term = expression.terms[i];
    for (int k = 0; k < arity(term.function); ++k) level[i] = std::max(level[i], level[term.terms[k]]);
    if (!is_reduction(term.function)) continue;
    shape.levels = std::max(shape.levels, ++level[i]);
    int64_t places = 1;
    for (size_t loop = 0; loop < expression.loops.size(); ++loop)
      places *= term.reduced >> loop & 1 ? expression.loops[loop] : 1;
    shape.longest = std::max(shape.longest, places);
    if (std::find(shape.reduced.begin(), shape.reduced.end(), term.reduced) == shape.reduced.end())
      shape.reduced.push_back(term.reduced);
  }
  return shape;
}

/// Counts the pairs of loads that read the same operand in different orders, for example a matrix and its transpose.
int opposite_loads(const Expression& expression) {
  int count = 0;
  const auto opposite = [&](const Term& a, const Term& b) {
    for (size_t i = 0; i < expression.loops.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        const bool vary = a.strides[i] && a.strides[k] && b.strides[i] && b.strides[k];
        if (vary && (a.strides[i] < a.strides[k]) != (b.strides[i] < b.strides[k])) return true;
      }
    }
    return false;
  };
  for (size_t i = 0; i < expression.terms.size(); ++i) {
    const Term& one = expression.terms[i];
    for (size_t k = 0; one.function == Function::load && k < i; ++k) {
      const Term& other = expression.terms[k];
      count += other.function == Function::load && other.index == one.index && opposite(one, other);
    }
  }
  return count;
}

/// Fuses the instructions of one program.
class LoopFuser {
 public:
  LoopFuser(const Program& program, const PassOptions& options)
      : program_(program),
        options_(options),
        schedule_(program),
        fusible_(program.instructions.size()),
        writers_(program.instructions.size()) {
    for (size_t i = 0; i < fusible_.size(); ++i) {
      fusible_[i] = expression_of(program.instructions[i]);
      GroupWriter alone;
      if (fusible_[i] && alone.add(program.instructions[i], *fusible_[i]) && alone.is_sound())
        writers_[i] = std::move(alone);
    }
  }

  int64_t run(Program& result) {
    for (size_t i = 0; i < fusible_.size(); ++i) {
      if (!writers_[i]) continue;
      for (const int other : candidates(static_cast<int>(i))) try_merge(schedule_.unit_of(other), static_cast<int>(i));
    }
    std::vector<std::string> kinds(fusible_.size());
    int64_t fired = 0;
    for (size_t unit = 0; unit < kinds.size(); ++unit) {
      if (schedule_.members(static_cast<int>(unit)).size() < 2) continue;
      kinds[unit] = writers_[unit]->expression().has_reductions() ? "reduction" : "pointwise";
      ++fired;
    }
    if (fired) result = schedule_.with_groups(program_, kinds);
    return fired;
  }

 private:
  /// Returns: instructions that make the inputs of this one, or read the same inputs, sorted by the saved bytes
  std::vector<int> candidates(int at) const {
    std::unordered_map<int, size_t> saved;
    const Uses& uses = schedule_.uses();
    for_each_operand(program_.instructions[at], [&](const Operand& operand) {
      const size_t bytes = program_.values[operand.value].nbytes + 1;
      const int maker = uses.maker[operand.value];
      if (maker >= 0 && writers_[schedule_.unit_of(maker)]) saved[maker] += 2 * bytes;
      for (const int reader : uses.readers[operand.value]) {
        if (reader < at && writers_[schedule_.unit_of(reader)]) saved[reader] += bytes;
      }
    });
    std::vector<std::pair<size_t, int>> order;
    order.reserve(saved.size());
    for (const auto& each : saved) order.emplace_back(each.second, each.first);
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second > b.second;
    });
    std::vector<int> result;
    for (size_t i = 0; i < std::min<size_t>(order.size(), 16); ++i) result.push_back(order[i].second);
    return result;
  }

  void try_merge(int other, int at) {
    const int unit = schedule_.unit_of(at);
    if (other == unit || !writers_[other] || !writers_[unit]) return;
    const size_t count = schedule_.members(other).size() + schedule_.members(unit).size();
    if (count > options_.max_group || !schedule_.may_merge(other, unit)) return;
    auto together = written_together(other, unit);
    if (!together || !fits(*together, *writers_[other], *writers_[unit]) || !can_generate(other, unit)) return;
    schedule_.merge(other, unit);
    writers_[other] = std::move(together);
    writers_[unit].reset();
  }

  std::optional<GroupWriter> written_together(int a, int b) const {
    const auto& first = schedule_.members(a);
    const auto& second = schedule_.members(b);
    GroupWriter writer;
    std::vector<int> rest = second;
    if (first.back() < second.front()) {
      writer = *writers_[a];
    } else {
      rest.clear();
      std::merge(first.begin(), first.end(), second.begin(), second.end(), std::back_inserter(rest));
    }
    for (const int member : rest) {
      if (!writer.add(program_.instructions[member], *fusible_[member])) return std::nullopt;
    }
    return writer;
  }

  static bool fits(const GroupWriter& both, const GroupWriter& a, const GroupWriter& b) {
    if (!both.is_sound() || both.inputs().size() > most_operands) return false;
    // Instructions that read the same operand in different orders only have the same loops if two sizes happen to be
    // equal or to have common factors. Programs for other sizes could not share the code.
    if (opposite_loads(both.expression()) > opposite_loads(a.expression()) + opposite_loads(b.expression()))
      return false;
    const Shape one = shape_of(a.expression()), two = shape_of(b.expression()), all = shape_of(both.expression());
    if (all.reduced.size() > std::max<size_t>({1, one.reduced.size(), two.reduced.size()})) return false;
    return all.levels <= std::max(one.levels, two.levels) || all.longest <= cached_places;
  }

  bool can_generate(int a, int b) const {
    if (!options_.can_generate) return true;
    std::vector<int> members;
    const auto& first = schedule_.members(a);
    const auto& second = schedule_.members(b);
    std::merge(first.begin(), first.end(), second.begin(), second.end(), std::back_inserter(members));
    const Instruction group = group_of(program_, schedule_.uses(), members, "");
    const auto expression = expression_of(*group.group);
    return expression && options_.can_generate(*expression);
  }

  const Program& program_;
  const PassOptions& options_;
  Schedule schedule_;
  std::vector<std::optional<Expression>> fusible_;
  std::vector<std::optional<GroupWriter>> writers_;  ///< for each unit
};

}  // namespace

int64_t fuse_loops(Program& program, const PassOptions& options) {
  Program result;
  const int64_t fired = LoopFuser(program, options).run(result);
  if (fired) program = std::move(result);
  return fired;
}

}  // namespace bellows::graph::detail
