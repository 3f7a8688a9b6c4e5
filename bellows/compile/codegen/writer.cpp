#include "bellows/compile/codegen/writer.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace bellows::compile_detail {

using graph::Function;
using graph::Store;
using graph::Term;

PhaseWriter::PhaseWriter(const Phase& phase)
    : e_(phase.nest), outer_(phase.outer), varies_(phase.nest.varies()), level_(phase.nest.terms.size(), 0) {
  for (size_t t = 0; t < e_.terms.size(); ++t) {
    const Term& term = e_.terms[t];
    for (int i = 0; i < graph::arity(term.function); ++i) level_[t] = std::max(level_[t], level_[term.terms[i]]);
    if (graph::is_reduction(term.function)) ++level_[t];
  }
}

std::string PhaseWriter::write() {
  out_.clear();
  write_numbers();
  out_ += "for (i64 u = begin; u < end; ++u) {\n";
  write_unit();
  out_ += "}\n";
  return std::move(out_);
}

void PhaseWriter::write_numbers() {
  for (size_t t = 0; t < e_.terms.size(); ++t) {
    const Term& term = e_.terms[t];
    if (term.function != Function::number) continue;
    out_ += c10::str("const ", value_type(term.type), " t", t, " = ",
                     converted(number(term.index), c10::kDouble, term.type), ";\n");
  }
}

std::string PhaseWriter::number(int index) {
  return c10::str("numbers[", index, "]");
}

uint64_t PhaseWriter::inner_loops() const {
  return (bit(e_.loops.size()) - 1) & ~(bit(outer_) - 1);
}

int64_t PhaseWriter::inner_places() const {
  int64_t result = 1;
  for (size_t i = outer_; i < e_.loops.size(); ++i) result *= e_.loops[i];
  return result;
}

std::vector<int> PhaseWriter::needed(const std::vector<int>& roots) const {
  std::vector<bool> wanted(e_.terms.size(), false);
  for (const int root : roots) wanted[root] = true;
  std::vector<int> result;
  for (int t = static_cast<int>(e_.terms.size()) - 1; t >= 0; --t) {
    const Term& term = e_.terms[t];
    if (!wanted[t] || term.function == Function::constant || term.function == Function::number) continue;
    result.push_back(t);
    if (!kept(t).empty()) continue;
    for (int i = 0; i < graph::arity(term.function); ++i) wanted[term.terms[i]] = true;
  }
  std::reverse(result.begin(), result.end());
  return result;
}

std::string PhaseWriter::text_of(int t) const {
  const Term& term = e_.terms[t];
  return term.function == Function::constant ? literal(term.value, term.type) : name(t);
}

void PhaseWriter::write_term(int t) {
  const Term& term = e_.terms[t];
  const std::string there = kept(t);
  if (there == name(t)) return;
  std::string value;
  if (!there.empty()) {
    value = there;
  } else if (term.function == Function::load) {
    value = c10::str("p", t, "[", place(term.strides), "]", term.type == c10::kBool ? " != 0" : "");
  } else {
    const int count = graph::arity(term.function);
    value = applied(term, e_.terms[term.terms[0]].type, text_of(term.terms[0]), count > 1 ? text_of(term.terms[1]) : "",
                    count > 2 ? text_of(term.terms[2]) : "");
    if (term.function == Function::pow && c10::isFloatingType(term.type) &&
        e_.terms[term.terms[1]].function == Function::constant)
      value = power(text_of(term.terms[0]), e_.terms[term.terms[1]].value, value);
  }
  out_ += c10::str("const ", value_type(term.type), " ", name(t), " = ", value, ";\n");
}

void PhaseWriter::write_terms(const std::vector<int>& roots) {
  for (const int t : needed(roots)) write_term(t);
}

std::string PhaseWriter::stored(size_t s) const {
  const Store& store = e_.stores[s];
  const Term& term = e_.terms[store.term];
  const bool cast = term.function == Function::cast && kept(store.term).empty();
  if (cast && graph::compute_type(store.type) != store.type && e_.terms[term.terms[0]].type == store.type)
    return text_of(term.terms[0]);  // rounded to this type before
  return converted(text_of(store.term), term.type, store.type);
}

void PhaseWriter::write_store(size_t s) {
  out_ += c10::str("s", s, "[", place(e_.stores[s].strides), "] = ", stored(s), ";\n");
}

std::vector<int> PhaseWriter::reductions_at(int level) const {
  std::vector<int> result;
  for (size_t t = 0; t < e_.terms.size(); ++t) {
    if (graph::is_reduction(e_.terms[t].function) && level_[t] == level + 1) result.push_back(static_cast<int>(t));
  }
  return result;
}

std::vector<int> PhaseWriter::arguments_of(const std::vector<int>& reductions) const {
  std::vector<int> result;
  result.reserve(reductions.size());
  for (const int t : reductions) result.push_back(e_.terms[t].terms[0]);
  return result;
}

int PhaseWriter::levels() const {
  return level_.empty() ? 0 : *std::max_element(level_.begin(), level_.end());
}

void PhaseWriter::decode_unit(size_t loops, const std::string& from) {
  out_ += c10::str("i64 rest = ", from, ";\n");
  for (size_t i = loops; i-- > 0;) {
    if (i == 0)
      out_ += "const i64 i0 = rest;\n";
    else
      out_ += c10::str("const i64 i", i, " = rest % ", e_.loops[i], "; rest /= ", e_.loops[i], ";\n");
  }
}

std::string PhaseWriter::base(bool result, int index, int64_t offset_bytes) {
  if (index >= scratch_index) return c10::str("scratch + ", offset_bytes);
  return c10::str(result ? "results[" : "operands[", index, "] + ", offset_bytes);
}

void PhaseWriter::write_pointers() {
  const auto declare = [&](const char* qualifier, const std::string& pointer, c10::ScalarType type,
                           const std::string& address, const std::string& moved) {
    const char* const memory = memory_type(type);
    out_ +=
        c10::str(qualifier, memory, "* const ", pointer, " = (", qualifier, memory, "*)(", address, ")", moved, ";\n");
  };
  const auto bytes = [](int index, int64_t offset, c10::ScalarType type) {
    return index >= scratch_index ? offset : offset * static_cast<int64_t>(c10::elementSize(type));
  };
  for (size_t t = 0; t < e_.terms.size(); ++t) {
    const Term& term = e_.terms[t];
    if (term.function != Function::load) continue;
    declare("const ", c10::str("p", t), term.type, base(false, term.index, bytes(term.index, term.offset, term.type)),
            unit_place(term.strides));
  }
  for (size_t s = 0; s < e_.stores.size(); ++s) {
    const Store& store = e_.stores[s];
    declare("", c10::str("s", s), store.type,
            base(!store.update, store.index, bytes(store.index, store.offset, store.type)), unit_place(store.strides));
  }
}

std::string PhaseWriter::simd(const std::vector<int>& reductions) const {
  std::string clauses;
  for (const int t : reductions) {
    const ReductionCode code = reduction_code(e_.terms[t]);
    clauses += c10::str(" reduction(", code.clause, ":q", t, ")");
    if (code.watches_nan) clauses += c10::str(" reduction(|:n", t, ")");
  }
  return "#pragma omp simd" + clauses + "\n";
}

bool PhaseWriter::is_written_inside(size_t s) const {
  uint64_t bits = varies_[e_.stores[s].term];
  for (size_t i = outer_; i < e_.loops.size(); ++i) {
    if (e_.stores[s].strides[i] != 0) bits |= bit(i);
  }
  return varies_along(bits, inner_loops());
}

}  // namespace bellows::compile_detail
