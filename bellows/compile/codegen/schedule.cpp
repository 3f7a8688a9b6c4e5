#include "bellows/compile/codegen/schedule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "bellows/core/round_up.h"

namespace bellows::compile_detail {
namespace {

using graph::Expression;
using graph::Function;
using graph::Store;
using graph::Term;

/// Identifies the phase of a reduction or store.
struct PhaseKey {
  int rank = 0;                     ///< runs after phases of lower rank
  uint64_t reduced = 0, outer = 0;  ///< loops, one bit each
  auto operator<=>(const PhaseKey&) const = default;
};

/// Keeps the loops in `order`, in this order.
void reorder(Expression& nest, const std::vector<size_t>& order) {
  const auto pick = [&](Term::Numbers& numbers) {
    if (numbers.empty()) return;
    Term::Numbers kept;
    for (const size_t loop : order) kept.push_back(numbers[loop]);
    numbers = std::move(kept);
  };
  pick(nest.loops);
  for (Term& term : nest.terms) {
    pick(term.strides);
    uint64_t reduced = 0;
    for (size_t i = 0; i < order.size(); ++i) reduced |= (term.reduced >> order[i] & 1) << i;
    term.reduced = reduced;
  }
  for (Store& store : nest.stores) pick(store.strides);
}

/// Calls visit(strides) for all loads and stores.
template <class Nest, class Visit>
void for_each_access(Nest& nest, const Visit& visit) {
  for (auto& term : nest.terms) {
    if (term.function == Function::load) visit(term.strides);
  }
  for (auto& store : nest.stores) visit(store.strides);
}

int64_t stride_of(const Term::Numbers& strides, size_t loop) {
  return loop < strides.size() ? strides[loop] : 0;
}

/// Removes loops with a single place. Reductions along such loops only become casts.
Expression without_single_places(Expression nest) {
  std::vector<size_t> order;
  for (size_t i = 0; i < nest.loops.size(); ++i) {
    if (nest.loops[i] != 1) order.push_back(i);
  }
  for_each_access(nest, [&](Term::Numbers& strides) { strides.resize(nest.loops.size(), 0); });
  reorder(nest, order);
  for (Term& term : nest.terms) {
    if (graph::is_reduction(term.function) && !term.reduced) term.function = Function::cast;
  }
  return nest;
}

/// Returns the loops of a reduction that become a reduction of their own, or 0 if it stays whole. A reduction of very many
/// places to few ones would run on one thread. Divided, the rows are reduced on all threads, and then their results.
/// Params: kept – the loops that the result has
uint64_t rows_of(const Expression& e, const Term& term, uint64_t kept) {
  constexpr int64_t enough = 64, most_in_order = 16384;
  int64_t outer = 1, inner = 1, rows = 1;
  for (size_t i = 0; i < e.loops.size(); ++i) {
    if (kept >> i & 1) outer *= e.loops[i];
    if (term.reduced >> i & 1) inner *= e.loops[i];
  }
  if (outer >= 8 || inner <= most_in_order) return 0;
  uint64_t chosen = 0;
  for (size_t i = 0; i < e.loops.size() && outer * rows < enough; ++i) {
    const bool last = !(term.reduced >> i >> 1);
    if (!(term.reduced >> i & 1) || last) continue;
    chosen |= uint64_t{1} << i;
    rows *= e.loops[i];
  }
  return outer * rows >= 8 ? chosen : 0;
}

/// Divides reductions of very many places into two.
Expression divided(Expression nest) {
  const std::vector<uint64_t> varies = nest.varies();
  std::vector<Term> terms;
  std::vector<int> moved(nest.terms.size());
  for (size_t t = 0; t < nest.terms.size(); ++t) {
    Term term = nest.terms[t];
    for (int i = 0; i < graph::arity(term.function); ++i) term.terms[i] = moved[term.terms[i]];
    const bool reduces = graph::is_reduction(term.function);
    if (const uint64_t rows = reduces ? rows_of(nest, term, varies[t]) : 0) {
      Term inner = term;
      inner.reduced &= ~rows;
      terms.push_back(inner);
      term.terms[0] = static_cast<int>(terms.size()) - 1;
      term.reduced = rows;
    }
    terms.push_back(std::move(term));
    moved[t] = static_cast<int>(terms.size()) - 1;
  }
  nest.terms = std::move(terms);
  for (Store& store : nest.stores) store.term = moved[store.term];
  return nest;
}

/// Sorts outer loops first. Within outer and inner loops, longer strides of the largest access come first.
void sort_loops(Phase& phase, uint64_t reduced) {
  Expression& nest = phase.nest;
  const Term::Numbers* largest = nullptr;
  size_t most = 0;
  for_each_access(nest, [&](const Term::Numbers& strides) {
    const auto varying =
        static_cast<size_t>(std::count_if(strides.begin(), strides.end(), [](int64_t s) { return s != 0; }));
    if (!largest || varying > most) largest = &strides, most = varying;
  });
  std::vector<size_t> order(nest.loops.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const bool inner_a = reduced >> a & 1, inner_b = reduced >> b & 1;
    if (inner_a != inner_b) return inner_b;
    return largest && stride_of(*largest, a) > stride_of(*largest, b);
  });
  phase.outer =
      static_cast<size_t>(std::count_if(order.begin(), order.end(), [&](size_t i) { return !(reduced >> i & 1); }));
  reorder(nest, order);
}

/// Merges two loops if every access continues at the end of the inner one.
void collapse_loops(Phase& phase) {
  Expression& nest = phase.nest;
  for (size_t i = nest.loops.size(); i-- > 1;) {
    if (i == phase.outer) continue;
    bool runs_on = true;
    for_each_access(nest, [&](const Term::Numbers& strides) {
      runs_on = runs_on && stride_of(strides, i - 1) == stride_of(strides, i) * nest.loops[i];
    });
    if (!runs_on) continue;
    const int64_t size = nest.loops[i];
    for_each_access(nest, [&](Term::Numbers& strides) { strides[i - 1] = strides[i]; });
    std::vector<size_t> order;
    for (size_t k = 0; k < nest.loops.size(); ++k) {
      if (k != i) order.push_back(k);
    }
    nest.loops[i - 1] *= size;
    if (i < phase.outer) --phase.outer;
    reorder(nest, order);
  }
}

class Scheduler {
 public:
  explicit Scheduler(const Expression& expression)
      : e_(divided(without_single_places(expression))),
        varies_(e_.varies()),
        nearest_(e_.terms.size()),
        loads_(e_.terms.size()),
        keys_(e_.terms.size()) {}

  std::optional<Schedule> run() {
    for (size_t t = 0; t < e_.terms.size(); ++t) look_at(static_cast<int>(t));
    for (const Store& store : e_.stores) store_keys_.push_back(key_of(store));
    join_lone_stores();
    if (!keep_updates_last() || !update_once()) return std::nullopt;
    collect_phases();
    Schedule result;
    for (const PhaseKey& key : phases_) result.phases.push_back(phase_of(key));
    result.scratch_bytes = scratch_bytes_;
    return result;
  }

 private:
  /// Records the nearest reductions on which a term depends. For a reduction, also determines its phase.
  void look_at(int t) {
    const Term& term = e_.terms[t];
    std::set<int>& below = nearest_[t];
    if (term.function == Function::load) loads_[t].insert(term.index);
    for (int i = 0; i < graph::arity(term.function); ++i) {
      const int argument = term.terms[i];
      loads_[t].insert(loads_[argument].begin(), loads_[argument].end());
      if (graph::is_reduction(e_.terms[argument].function))
        below.insert(argument);
      else
        below.insert(nearest_[argument].begin(), nearest_[argument].end());
    }
    if (!graph::is_reduction(term.function)) return;
    PhaseKey& key = keys_[t];
    key = {.rank = 0, .reduced = term.reduced, .outer = varies_[t]};
    for (const int u : below) {
      const bool same = keys_[u].reduced == key.reduced && keys_[u].outer == key.outer;
      key.rank = std::max(key.rank, keys_[u].rank + (same ? 0 : 1));
    }
  }

  uint64_t places(const Store& store) const {
    uint64_t mask = 0;
    for (size_t i = 0; i < e_.loops.size(); ++i) mask |= static_cast<uint64_t>(stride_of(store.strides, i) != 0) << i;
    return mask | varies_[store.term];
  }

  std::set<int> reductions_of(int term) const {
    return graph::is_reduction(e_.terms[term].function) ? std::set<int>{term} : nearest_[term];
  }

  PhaseKey key_of(const Store& store) const {
    const uint64_t outer = places(store);
    PhaseKey key{.rank = 0, .reduced = 0, .outer = outer};
    int highest = -1;
    for (const int u : reductions_of(store.term)) {
      if (highest < 0 || keys_[u].rank > keys_[highest].rank) highest = u;
    }
    if (highest < 0) return key;
    const bool same_places = (outer & ~keys_[highest].reduced) == keys_[highest].outer;
    const bool at_each_place = outer & keys_[highest].reduced;
    if (same_places && !(at_each_place && few_places(keys_[highest]))) return keys_[highest];
    key.rank = keys_[highest].rank + 1;
    return key;
  }

  /// True for reductions of many places to very few, such as a sum over everything. Computations that use the result at
  /// all places should use all threads, and therefore belong to another phase.
  bool few_places(const PhaseKey& key) const {
    int64_t outer = 1, inner = 1;
    for (size_t i = 0; i < e_.loops.size(); ++i) (key.reduced >> i & 1 ? inner : outer) *= e_.loops[i];
    return outer < 4 && inner > 16384;
  }

  /// Moves stores without reductions to a phase that runs over the same places.
  void join_lone_stores() {
    for (size_t s = 0; s < e_.stores.size(); ++s) {
      PhaseKey& key = store_keys_[s];
      if (key.reduced || key.rank) continue;
      const uint64_t outer = key.outer;
      for (size_t o = 0; o < e_.stores.size(); ++o) {
        const PhaseKey& other = store_keys_[o];
        if (other.reduced && (outer & ~other.reduced) == other.outer) key = other;
      }
    }
  }

  /// Moves writes of an operand to the phase that reads it last. Within a phase, a unit stores after its reductions.
  bool keep_updates_last() {
    for (size_t s = 0; s < e_.stores.size(); ++s) {
      if (!e_.stores[s].update) continue;
      std::vector<size_t> together{s};
      for (size_t o = 0; o < e_.stores.size(); ++o) {
        if (o != s && loads_[e_.stores[o].term].contains(e_.stores[s].index)) together.push_back(o);
      }
      PhaseKey last = store_keys_[s];
      for (const size_t o : together) last = std::max(last, store_keys_[o]);
      // False if that phase does not run over all places of the operand.
      if (places(e_.stores[s]) & ~(last.outer | last.reduced)) return false;
      for (const size_t o : together) {
        if (places(e_.stores[o]) != places(e_.stores[s]) && store_keys_[o] != last) return false;
      }
      for (const size_t o : together) store_keys_[o] = last;
    }
    return std::none_of(e_.stores.begin(), e_.stores.end(), [&](const Store& store) {
      return store.update && is_reduced_after(store.index, store_keys_[&store - e_.stores.data()]);
    });
  }

  bool is_reduced_after(int operand, const PhaseKey& key) const {
    for (size_t t = 0; t < e_.terms.size(); ++t) {
      if (graph::is_reduction(e_.terms[t].function) && loads_[t].contains(operand) && key < keys_[t]) return true;
    }
    return false;
  }

  /// False if several units would write the same place of an operand: the second would read the result of the first.
  /// Stores of the unchanged value are allowed.
  bool update_once() const {
    for (size_t s = 0; s < e_.stores.size(); ++s) {
      const Store& store = e_.stores[s];
      const Term& stored = e_.terms[store.term];
      const bool leaves_it = stored.function == Function::load && stored.index == store.index;
      if (store.update && !leaves_it && (store_keys_[s].outer & ~places(store))) return false;
    }
    return true;
  }

  void need(const PhaseKey& key, const std::set<int>& reductions) {
    for (const int u : reductions) {
      if (keys_[u] == key) {
        need(key, nearest_[u]);
      } else if (!slots_.contains(u)) {
        slots_[u] = scratch_bytes_;
        scratch_bytes_ += round_up(elements(varies_[u]) * c10::elementSize(e_.terms[u].type), 64);
        phases_.insert(keys_[u]);
        need(keys_[u], nearest_[u]);
      }
    }
  }

  size_t elements(uint64_t loops) const {
    size_t result = 1;
    for (size_t i = 0; i < e_.loops.size(); ++i) {
      if (loops >> i & 1) result *= static_cast<size_t>(e_.loops[i]);
    }
    return result;
  }

  void collect_phases() {
    for (size_t s = 0; s < e_.stores.size(); ++s) {
      phases_.insert(store_keys_[s]);
      need(store_keys_[s], reductions_of(e_.stores[s].term));
    }
  }

  Term::Numbers scratch_strides(int term) const {
    Term::Numbers strides(e_.loops.size(), 0);
    int64_t stride = 1;
    for (size_t i = e_.loops.size(); i-- > 0;) {
      if (!(varies_[term] >> i & 1)) continue;
      strides[i] = stride;
      stride *= e_.loops[i];
    }
    return strides;
  }

  /// Copies a term and the terms on which it depends. Reductions of other phases become loads.
  int take(Expression& nest, std::map<int, int>& taken, int t, const PhaseKey& key) const {
    if (const auto known = taken.find(t); known != taken.end()) return known->second;
    Term term = e_.terms[t];
    if (graph::is_reduction(term.function) && keys_[t] != key) {
      term = {.function = Function::load, .type = term.type, .index = scratch_index};
      term.offset = static_cast<int64_t>(slots_.at(t));
      term.strides = scratch_strides(t);
    }
    for (int i = 0; i < graph::arity(term.function); ++i) term.terms[i] = take(nest, taken, term.terms[i], key);
    nest.terms.push_back(std::move(term));
    return taken[t] = static_cast<int>(nest.terms.size()) - 1;
  }

  Phase phase_of(const PhaseKey& key) const {
    Phase phase;
    phase.nest.loops = e_.loops;
    std::map<int, int> taken;
    for (const auto& [t, slot] : slots_) {
      if (keys_[t] != key) continue;
      phase.nest.stores.push_back({.term = take(phase.nest, taken, t, key),
                                   .index = scratch_index,
                                   .type = e_.terms[t].type,
                                   .strides = scratch_strides(t),
                                   .offset = static_cast<int64_t>(slot)});
    }
    for (size_t s = 0; s < e_.stores.size(); ++s) {
      if (store_keys_[s] != key) continue;
      phase.nest.stores.push_back(e_.stores[s]);
      phase.nest.stores.back().term = take(phase.nest, taken, e_.stores[s].term, key);
    }
    std::vector<size_t> used;
    uint64_t reduced = 0;
    for (size_t i = 0; i < e_.loops.size(); ++i) {
      if (!((key.outer | key.reduced) >> i & 1)) continue;
      reduced |= (key.reduced >> i & 1) << used.size();
      used.push_back(i);
    }
    reorder(phase.nest, used);
    sort_loops(phase, reduced);
    collapse_loops(phase);
    return phase;
  }

  Expression e_;
  std::vector<uint64_t> varies_;
  std::vector<std::set<int>> nearest_, loads_;
  std::vector<PhaseKey> keys_;
  std::vector<PhaseKey> store_keys_;
  std::set<PhaseKey> phases_;
  std::map<int, size_t> slots_;
  size_t scratch_bytes_ = 0;
};

}  // namespace

std::optional<Schedule> schedule(const Expression& expression) {
  return Scheduler(expression).run();
}

}  // namespace bellows::compile_detail
