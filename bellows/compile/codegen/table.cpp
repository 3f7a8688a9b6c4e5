#include "bellows/compile/codegen/table.h"

#include <c10/util/StringUtil.h>

#include <map>

namespace bellows::compile_detail {
namespace {

using graph::Function;
using graph::Store;
using graph::Term;

int64_t blocks_of(int64_t places) {
  return (places + Table::block - 1) / Table::block;
}

/// True if the phase has one loop, no reductions and no scratch memory.
bool is_flat(const Phase& phase) {
  if (phase.nest.loops.size() > 1 || phase.outer != phase.nest.loops.size()) return false;
  for (const Term& term : phase.nest.terms) {
    if (graph::is_reduction(term.function) || (term.function == Function::load && term.index >= scratch_index))
      return false;
  }
  for (const Store& store : phase.nest.stores) {
    if (store.index >= scratch_index) return false;
  }
  return true;
}

/// Removes from a phase the parts that may differ between the items of a table.
Table::Item take_item(Phase& phase) {
  Table::Item item;
  if (phase.nest.loops.empty()) {
    phase.nest.loops.push_back(1);
    phase.outer = 1;
    for (Term& term : phase.nest.terms) {
      if (term.function == Function::load) term.strides.assign(1, 1);
    }
    for (Store& store : phase.nest.stores) store.strides.assign(1, 1);
  }
  item.places = phase.nest.loops[0];
  int access = 0;
  for (Term& term : phase.nest.terms) {
    if (term.function == Function::number) {
      item.numbers.push_back(term.index);
      term.index = static_cast<int>(item.numbers.size()) - 1;
    }
    if (term.function != Function::load) continue;
    item.addresses.push_back({false, term.index, term.offset * static_cast<int64_t>(c10::elementSize(term.type))});
    term.index = access++;
    term.offset = 0;
  }
  for (Store& store : phase.nest.stores) {
    item.addresses.push_back(
        {!store.update, store.index, store.offset * static_cast<int64_t>(c10::elementSize(store.type))});
    store.index = access++;
    store.offset = 0;
    store.update = true;
  }
  return item;
}

}  // namespace

int64_t Table::units() const {
  int64_t result = 0;
  for (const Item& item : items) result += blocks_of(item.places);
  return result;
}

std::string Table::text() const {
  const size_t addresses = items[0].addresses.size(), numbers = items[0].numbers.size();
  std::string result = c10::str("struct Item { i64 first, places, offset[", addresses, "]; i32 base[", addresses,
                                "], number[", numbers + 1, "]; };\nstatic const Item items[] = {\n");
  int64_t first = 0;
  for (const Item& item : items) {
    result += c10::str("{", first, ", ", item.places, ", {");
    for (const auto& address : item.addresses) result += c10::str(address.offset_bytes, ", ");
    result += "}, {";
    for (const auto& address : item.addresses)
      result += c10::str(address.result ? -1 - address.index : address.index, ", ");
    result += "}, {";
    for (const int number : item.numbers) result += c10::str(number, ", ");
    result += "}},\n";
    first += blocks_of(item.places);
  }
  return result + c10::str("{", first, "}};\n");
}

std::vector<Table> make_tables(const std::vector<Phase>& phases) {
  std::vector<Table> tables;
  std::map<std::string, size_t> known;
  for (const Phase& phase : phases) {
    if (!is_flat(phase)) {
      tables.emplace_back().alone = phase;
      continue;
    }
    Phase same = phase;
    Table::Item item = take_item(same);
    graph::Expression code = same.nest;
    code.loops[0] = 0;
    const auto [at, added] = known.emplace(code.to_text(), tables.size());
    if (added) tables.push_back({.phase = std::move(same), .alone = phase});
    tables[at->second].items.push_back(std::move(item));
  }
  return tables;
}

}  // namespace bellows::compile_detail
