#include <algorithm>

#include "bellows/graph/passes/group_writer.h"

namespace bellows::graph {
namespace detail {
namespace {

/// Calls visit(strides) for all places that an expression looks at.
template <class Visit>
void for_each_strides(Expression& expression, const Visit& visit) {
  for (Term& term : expression.terms) {
    if (term.function == Function::load) visit(term.strides);
  }
  for (Store& store : expression.stores) visit(store.strides);
}

/// Bits below stay, those above move.
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

/// Whether a loop and the next inner one may be walked as one.
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

}  // namespace

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

void drop_single_loops(Expression& expression) {
  for (size_t loop = expression.loops.size(); loop-- > 0;) {
    if (expression.loops[loop] == 1) drop_loop(expression, loop);
  }
}

void simplify(Expression& expression) {
  drop_unused_terms(expression);
  join_loops(expression);
}

namespace {

/// Leaves the stores of a group's outputs; a result may be one that takes the memory of an input. False: one is missing.
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
    const auto which = at - writer.made().begin();
    const ValueId root = writer.roots()[which];
    if (root != no_value && (output.input < 0 || root != group.inputs[output.input])) return false;
    kept.push_back(expression.stores[which]);
    kept.back().index = index;
    kept.back().update = output.input >= 0;
  }
  expression.stores = std::move(kept);
  return true;
}

/// Operands that are written are loaded at the places only that the store writes.
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

/// What one of the inner groups computes, in terms of the outer one.
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
