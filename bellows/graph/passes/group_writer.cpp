#include "bellows/graph/passes/group_writer.h"

#include <algorithm>

namespace bellows::graph {
namespace detail {
namespace {

using Numbers = Term::Numbers;

int64_t places(const Numbers& loops, uint64_t which) {
  int64_t count = 1;
  for (size_t i = 0; i < loops.size(); ++i) {
    if (which >> i & 1) count *= loops[i];
  }
  return count;
}

uint64_t all_of(const Numbers& loops) {
  return (uint64_t{1} << loops.size()) - 1;
}

Numbers spread(const Numbers& strides, const std::vector<size_t>& loops, size_t count) {
  Numbers result(count, 0);
  for (size_t i = 0; i < strides.size(); ++i) result[loops[i]] = strides[i];
  return result;
}

std::vector<const Operand*> operands_of(const Instruction& instruction) {
  std::vector<const Operand*> result;
  for (const auto& argument : instruction.arguments) {
    for (const Operand& operand : argument.operands) result.push_back(&operand);
  }
  return result;
}

/// Calls visit(strides) for all loads and stores of an expression.
template <class Visit>
void for_each_strides(Expression& expression, const Visit& visit) {
  for (Term& term : expression.terms) {
    if (term.function == Function::load) visit(term.strides);
  }
  for (Store& store : expression.stores) visit(store.strides);
}

/// Removes bit `at`: lower bits stay, higher bits move down.
uint64_t without_bit(uint64_t bits, size_t at) {
  const uint64_t low = (uint64_t{1} << at) - 1;
  return (bits & low) | (bits >> 1 & ~low);
}

void drop_loop(Expression& expression, size_t loop) {
  const auto drop = [&](Term::Numbers& numbers) { numbers.erase(numbers.begin() + static_cast<std::ptrdiff_t>(loop)); };
  drop(expression.loops);
  for_each_strides(expression, drop);
  for (Term& term : expression.terms) term.reduced = without_bit(term.reduced, loop);
}

/// True if a loop and the next inner one can be combined into one.
bool may_join(Expression& expression, size_t loop) {
  bool may = true;
  for_each_strides(expression, [&](Term::Numbers& strides) {
    may = may && strides[loop] == strides[loop + 1] * expression.loops[loop + 1];
  });
  return may && std::all_of(expression.terms.begin(), expression.terms.end(), [&](const Term& term) {
           return (term.reduced >> loop & 1) == (term.reduced >> (loop + 1) & 1);
         });
}

void join_loops(Expression& expression) {
  for (size_t loop = expression.loops.size(); loop-- > 1;) {
    if (!may_join(expression, loop - 1)) continue;
    expression.loops[loop] *= expression.loops[loop - 1];
    drop_loop(expression, loop - 1);
  }
}

void drop_unused_terms(Expression& expression) {
  auto& terms = expression.terms;
  std::vector<bool> used(terms.size(), false);
  for (const Store& store : expression.stores) used[store.term] = true;
  for (size_t i = terms.size(); i-- > 0;) {
    for (int k = 0; used[i] && k < arity(terms[i].function); ++k) used[terms[i].terms[k]] = true;
  }
  std::vector<int> moved(terms.size(), -1);
  size_t count = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    if (!used[i]) continue;
    for (int k = 0; k < arity(terms[i].function); ++k) terms[i].terms[k] = moved[terms[i].terms[k]];
    moved[i] = static_cast<int>(count);
    if (count != i) terms[count] = std::move(terms[i]);
    ++count;
  }
  terms.resize(count);
  for (Store& store : expression.stores) store.term = moved[store.term];
}

/// Splits a loop in two. The inner one has `inner` places.
void split_loop(Expression& expression, size_t loop, int64_t inner) {
  const auto at = static_cast<std::ptrdiff_t>(loop);
  expression.loops[loop] /= inner;
  expression.loops.insert(expression.loops.begin() + at + 1, inner);
  for_each_strides(expression, [&](Term::Numbers& strides) {
    const int64_t stride = strides[loop];
    strides[loop] = stride * inner;
    strides.insert(strides.begin() + at + 1, stride);
  });
  for (Term& term : expression.terms) {
    const uint64_t low = (uint64_t{1} << (loop + 1)) - 1, same = term.reduced >> loop & 1;
    term.reduced = (term.reduced & low) | (term.reduced & ~low) << 1 | same << (loop + 1);
  }
}

/// Removes loops with a single place.
void drop_single_loops(Expression& expression) {
  for (size_t loop = expression.loops.size(); loop-- > 0;) {
    if (expression.loops[loop] == 1) drop_loop(expression, loop);
  }
}

/// Removes terms that no store needs, and combines loops.
void simplify(Expression& expression) {
  drop_unused_terms(expression);
  join_loops(expression);
}

}  // namespace

bool GroupWriter::add(const Instruction& instruction) {
  const auto one = expression_of(instruction);
  return one && add(instruction, *one);
}

bool GroupWriter::add(const Instruction& instruction, Expression one) {
  drop_single_loops(one);
  GroupWriter before = *this;
  const auto operands = operands_of(instruction);
  const auto which = loops_for(one, operands);
  const auto loops = which ? align(one, *which) : std::nullopt;
  if (loops && expression_.loops.size() < 60 && take_terms(one, *loops, instruction, operands) &&
      take_stores(one, *loops, instruction, operands))
    return true;
  *this = std::move(before);
  return false;
}

/// Returns: the group's loops that an instruction runs over. An instruction on fewer places runs over the loops along
///          which one of its inputs varies.
std::optional<uint64_t> GroupWriter::loops_for(const Expression& one, const std::vector<const Operand*>& operands) {
  const int64_t count = places(one.loops, ~uint64_t{0});
  const int64_t here = places(expression_.loops, ~uint64_t{0});
  if (count == here) return all_of(expression_.loops);
  if (count == 1) return 0;
  if (here == 1) {
    expression_.loops = one.loops;
    for (Term& term : expression_.terms) term.strides.assign(term.function == Function::load ? one.loops.size() : 0, 0);
    for (Store& store : expression_.stores) store.strides.assign(one.loops.size(), 0);
    return all_of(expression_.loops);
  }
  const auto varies = expression_.varies();
  for (const Operand* operand : operands) {
    const int at = find(operand->value);
    if (at < 0) continue;
    const uint64_t loops = varies[expression_.stores[at].term];
    if (places(expression_.loops, loops) == count) return loops;
  }
  return std::nullopt;
}

/// Splits the loops of an instruction and of the group until their sizes match. Returns the group's loop for each loop
/// of the instruction.
std::optional<GroupWriter::Loops> GroupWriter::align(Expression& one, uint64_t which) {
  std::vector<size_t> targets;
  for (size_t i = 0; i < expression_.loops.size(); ++i) {
    if (which >> i & 1) targets.push_back(i);
  }
  Loops found;  // innermost first
  size_t i = one.loops.size(), j = targets.size();
  while (i > 0 && j > 0) {
    const int64_t mine = one.loops[i - 1], theirs = expression_.loops[targets[j - 1]];
    const int64_t small = std::min(mine, theirs);
    if (std::max(mine, theirs) % small) return std::nullopt;
    size_t target = targets[j - 1];
    if (theirs > small) {
      split_loop(expression_, target, small);
      for (size_t& loop : found) ++loop;
      ++target;
    } else {
      --j;
    }
    if (mine > small) {
      split_loop(one, i - 1, small);
    } else {
      --i;
    }
    found.push_back(target);
  }
  if (i || j) return std::nullopt;
  std::reverse(found.begin(), found.end());
  return found;
}

int GroupWriter::find(ValueId value) const {
  const auto at = std::find(made_.begin(), made_.end(), value);
  return at == made_.end() ? -1 : static_cast<int>(at - made_.begin());
}

int GroupWriter::input(ValueId value) {
  const auto at = std::find(inputs_.begin(), inputs_.end(), value);
  if (at != inputs_.end()) return static_cast<int>(at - inputs_.begin());
  inputs_.push_back(value);
  return static_cast<int>(inputs_.size()) - 1;
}

int GroupWriter::add_term(Term term) {
  auto& terms = expression_.terms;
  const auto at = std::find(terms.begin(), terms.end(), term);
  if (at != terms.end()) return static_cast<int>(at - terms.begin());
  terms.push_back(std::move(term));
  return static_cast<int>(terms.size()) - 1;
}

/// Resolves a load. If the group made the value and stores it at the same places, `already` is set to its term. Returns
/// none if the places differ.
std::optional<Term> GroupWriter::load(Term term, ValueId value, int& already) {
  bool made = false;
  for (size_t i = 0; i < made_.size(); ++i) {
    if (made_[i] != value) continue;
    made = true;
    const Store& store = expression_.stores[i];
    if (store.type != term.type || store.strides != term.strides || store.offset != term.offset) continue;
    already = store.term;
    return term;
  }
  if (made) return std::nullopt;
  term.index = input(value);
  return term;
}

bool GroupWriter::take_terms(const Expression& one, const Loops& loops, const Instruction& instruction,
                             const std::vector<const Operand*>& operands) {
  term_of_.clear();
  for (Term term : one.terms) {
    int already = -1;
    if (term.function == Function::load) {
      term.strides = spread(term.strides, loops, expression_.loops.size());
      const auto loaded = load(term, operands[term.index]->value, already);
      if (!loaded) return false;
      term = *loaded;
    } else if (term.function == Function::number) {
      term.index = instruction.arguments[term.index].number;
    }
    uint64_t reduced = 0;
    for (size_t i = 0; i < loops.size(); ++i) reduced |= (term.reduced >> i & 1) << loops[i];
    term.reduced = reduced;
    for (int i = 0; i < arity(term.function); ++i) term.terms[i] = term_of_[term.terms[i]];
    if (term.function == Function::cast && expression_.terms[term.terms[0]].type == term.type) already = term.terms[0];
    if (is_reduction(term.function) && !reduced) already = term.terms[0];  // a reduction over one place
    term_of_.push_back(already >= 0 ? already : add_term(std::move(term)));
  }
  return true;
}

bool GroupWriter::put(ValueId before, ValueId value, Store store) {
  ValueId root = before;
  const int at = before == no_value ? -1 : find(before);
  if (at >= 0) {
    const Store& old = expression_.stores[at];
    if (store.type != old.type || store.strides != old.strides || store.offset != old.offset) return false;
    root = roots_[at];
  } else if (before != no_value) {
    input(before);
  }
  expression_.stores.push_back(std::move(store));
  made_.push_back(value);
  roots_.push_back(root);
  return true;
}

bool GroupWriter::take_stores(const Expression& one, const Loops& loops, const Instruction& instruction,
                              const std::vector<const Operand*>& operands) {
  std::vector<const Operand*> results;
  for (const auto& result : instruction.results) {
    for (const Operand& operand : result.operands) results.push_back(&operand);
  }
  for (Store store : one.stores) {
    store.term = term_of_[store.term];
    store.strides = spread(store.strides, loops, expression_.loops.size());
    const ValueId before = store.update ? operands[store.index]->value : no_value;
    ValueId value = before;
    if (!store.update) value = results[store.index]->value;
    for (const auto& update : instruction.updates) {
      if (store.update && update.before == before) value = update.after;
    }
    if (!put(before, value, std::move(store))) return false;
  }
  return std::all_of(instruction.updates.begin(), instruction.updates.end(),
                     [&](const auto& update) { return find(update.after) >= 0; });
}

bool GroupWriter::is_sound() const {
  const auto& terms = expression_.terms;
  for (size_t i = 0; i < made_.size(); ++i) {
    if (roots_[i] == no_value) continue;
    const auto at = std::find(inputs_.begin(), inputs_.end(), roots_[i]);
    const int index = static_cast<int>(at - inputs_.begin());
    const Store& store = expression_.stores[i];
    std::vector<bool> from(terms.size(), false);  // depends on the value that the update overwrites
    for (size_t t = 0; t < terms.size(); ++t) {
      const Term& term = terms[t];
      if (term.function == Function::load && term.index == index) {
        if (term.strides != store.strides || term.offset != store.offset || term.type != store.type) return false;
        from[t] = true;
      }
      for (int k = 0; k < arity(term.function); ++k) from[t] = from[t] || from[term.terms[k]];
      if (from[t] && is_reduction(term.function)) return false;
    }
  }
  return true;
}

namespace {

/// Removes all stores except those of the group's outputs. A result may also be one that takes the memory of an input.
/// Returns false if an output is missing.
bool keep_outputs(const Program& group, const GroupWriter& writer, Expression& expression) {
  std::vector<Store> kept;
  int result = 0;
  for (const auto& output : group.outputs) {
    const int index = output.input >= 0 ? output.input : result++;
    const auto at = std::find(writer.made().begin(), writer.made().end(), output.value);
    if (at == writer.made().end()) {
      if (group.values[output.value].nbytes == 0) continue;
      return false;
    }
    for (size_t which = at - writer.made().begin(); which < writer.made().size(); ++which) {
      if (writer.made()[which] != output.value) continue;  // a concatenation has several stores
      const ValueId root = writer.roots()[which];
      if (root != no_value && (output.input < 0 || root != group.inputs[output.input])) return false;
      kept.push_back(expression.stores[which]);
      kept.back().index = index;
      kept.back().update = output.input >= 0;
    }
  }
  expression.stores = std::move(kept);
  return true;
}

/// True if written operands are loaded only at the places that the store writes.
bool are_loaded_where_written(const Expression& expression) {
  for (const Store& store : expression.stores) {
    if (!store.update) continue;
    for (const Term& term : expression.terms) {
      const bool loads = term.function == Function::load && term.index == store.index;
      if (loads && (term.strides != store.strides || term.offset != store.offset || term.type != store.type))
        return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace detail

std::optional<Expression> expression_of(const Program& group) {
  detail::GroupWriter writer;
  for (const Instruction& instruction : group.instructions) {
    if (!writer.add(instruction)) return std::nullopt;
  }
  if (!writer.is_sound()) return std::nullopt;
  Expression result = writer.expression();
  if (!detail::keep_outputs(group, writer, result) || result.stores.empty()) return std::nullopt;
  for (Term& term : result.terms) {
    if (term.function != Function::load) continue;
    const auto at = std::find(group.inputs.begin(), group.inputs.end(), writer.inputs()[term.index]);
    if (at == group.inputs.end()) return std::nullopt;
    term.index = static_cast<int>(at - group.inputs.begin());
  }
  if (!detail::are_loaded_where_written(result)) return std::nullopt;
  detail::simplify(result);
  return result;
}

namespace {

int place_of(const std::vector<ValueId>& all, ValueId value) {
  const auto at = std::find(all.begin(), all.end(), value);
  return at == all.end() ? -1 : static_cast<int>(at - all.begin());
}

/// The expression of one inner group, with indices of the outer one.
std::optional<Expression> inner_expression(const Program& group, const Instruction& one,
                                           const std::vector<ValueId>& made) {
  auto expression = expression_of(*one.group);
  if (!expression) return std::nullopt;
  bool known = true;
  for (Term& term : expression->terms) {
    if (term.function == Function::number) term.index = one.arguments[one.group->inputs.size() + term.index].number;
    if (term.function == Function::load)
      term.index = place_of(group.inputs, one.arguments[term.index].operands[0].value);
    known = known && ((term.function != Function::load && term.function != Function::number) || term.index >= 0);
  }
  for (Store& store : expression->stores) {
    store.index = store.update ? place_of(group.inputs, one.arguments[store.index].operands[0].value)
                               : place_of(made, one.results[store.index].operands[0].value);
    known = known && store.index >= 0;
  }
  return known ? expression : std::nullopt;
}

}  // namespace

std::vector<Expression> expressions_of(const Program& group) {
  std::vector<ValueId> made;
  for (const auto& output : group.outputs) {
    if (output.input < 0) made.push_back(output.value);
  }
  std::vector<Expression> all;
  for (const Instruction& one : group.instructions) {
    if (!one.group) break;
    auto expression = inner_expression(group, one, made);
    if (!expression) return {};
    all.push_back(std::move(*expression));
  }
  if (all.size() == group.instructions.size()) return all;
  auto whole = expression_of(group);
  return whole ? std::vector<Expression>{std::move(*whole)} : std::vector<Expression>{};
}

}  // namespace bellows::graph
