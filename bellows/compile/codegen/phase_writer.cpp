#include "bellows/compile/codegen/phase_writer.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "bellows/compile/codegen/marked_text.h"
#include "bellows/compile/codegen/scalar.h"

namespace bellows::compile_detail {
namespace {

using graph::Function;
using graph::Store;
using graph::Term;

/// The common part of all writers of a phase: names of terms, addresses in memory, bodies of loops.
///
/// A unit is the work that one thread computes independently: a row, or a block of columns.
class PhaseWriter {
 public:
  explicit PhaseWriter(const Phase& phase);
  virtual ~PhaseWriter() = default;
  PhaseWriter(const PhaseWriter&) = delete;
  PhaseWriter& operator=(const PhaseWriter&) = delete;

  /// Returns: the body of a function that computes the units from `begin` to `end`
  virtual std::string write();
  virtual int64_t units() const = 0;

 protected:
  virtual void write_unit() = 0;
  /// Returns: the expression that reads a term computed before the loop; "" if it is computed in the loop
  virtual std::string kept(int term) const = 0;
  /// Returns: the position of an access in a loop, in elements from the start of the unit
  virtual std::string place(const graph::Term::Numbers& strides) const = 0;
  /// Returns: the first byte of an access's buffer plus the given offset
  virtual std::string base(bool result, int index, int64_t offset_bytes);
  virtual std::string number(int index);
  /// Returns: the address offset of one unit
  virtual std::string unit_place(const graph::Term::Numbers& strides) const = 0;

  uint64_t bit(size_t loop) const { return uint64_t{1} << loop; }
  bool varies_along(uint64_t bits, uint64_t loops) const { return (bits & loops) != 0; }
  uint64_t inner_loops() const;
  int64_t inner_places() const;
  /// Returns: the terms that `roots` need and that are not kept, in order
  std::vector<int> needed(const std::vector<int>& roots) const;
  /// Writes declarations of these terms.
  void write_terms(const std::vector<int>& roots);
  void write_term(int term);
  std::string name(int term) const { return "t" + std::to_string(term); }
  std::string text_of(int term) const;
  void write_store(size_t store);
  std::string stored(size_t store) const;
  /// Returns: the reductions whose arguments are available after `level` levels of reductions
  std::vector<int> reductions_at(int level) const;
  std::vector<int> arguments_of(const std::vector<int>& reductions) const;
  /// Returns: the number of levels. The loops for the reductions of a level use the results of earlier levels.
  int levels() const;
  /// Writes code before the loop over units. Declares the variables of the first unit.
  virtual void write_first_unit() = 0;
  /// Writes code that moves these variables to the next unit.
  virtual void write_next_unit() = 0;
  /// Writes the position of a unit along the outer loops, as variables `i0`, `i1`, ….
  void write_first_position(size_t loops, const std::string& unit);
  void write_next_position(size_t loops);
  void write_pointers();
  void write_numbers();
  std::string simd(const std::vector<int>& reductions) const;
  bool is_written_inside(size_t store) const;

  const graph::Expression& e_;
  size_t outer_;
  std::vector<uint64_t> varies_;
  std::vector<int> level_;
  std::string out_;
};

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
  write_first_unit();
  out_ += "for (i64 u = begin; u < end; ++u) {\n";
  write_unit();
  write_next_unit();
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
  if (term.function != Function::constant) return name(t);
  const std::string text = literal(term.value, term.type);
  return c10::isFloatingType(term.type) && std::isfinite(term.value) ? marked_constant(text, term.type) : text;
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
    return text_of(term.terms[0]);  // already rounded to this type
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

// Divisions by sizes that are not literals are slow, so only the first unit needs them.
void PhaseWriter::write_first_position(size_t loops, const std::string& unit) {
  if (loops == 0) return;
  out_ += c10::str("i64 i0 = ", unit, ";\n");
  for (size_t i = loops; i-- > 1;)
    out_ += c10::str("i64 i", i, " = i0 % ", marked_size(e_.loops[i]), "; i0 /= ", marked_size(e_.loops[i]), ";\n");
}

void PhaseWriter::write_next_position(size_t loops) {
  if (loops == 0) return;
  for (size_t i = loops; i-- > 1;)
    out_ += c10::str("if (++i", i, " == ", marked_size(e_.loops[i]), ") { i", i, " = 0; ");
  out_ += "++i0; " + std::string(loops - 1, '}') + "\n";
}

std::string PhaseWriter::base(bool result, int index, int64_t offset_bytes) {
  if (index >= scratch_index) return c10::str("scratch + ", marked_size(offset_bytes));
  return c10::str(result ? "results[" : "operands[", index, "] + ", marked_size(offset_bytes));
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

constexpr int64_t part_length = 4096;       ///< number of floats that are added before the sum is added to a double
constexpr int64_t longest_kept_row = 8192;  ///< maximum size of a row whose terms are kept on the stack
/// Size of arrays for a row. It is the same for all sizes, so that programs share the code. The additional places
/// prevent that elements of different arrays use the same part of the cache.
constexpr int64_t row_capacity = longest_kept_row + 32;

/// Writes rows: a unit is a row, which contains all places that are reduced together. Its innermost loop is vectorized.
class RowWriter : public PhaseWriter {
 public:
  explicit RowWriter(const Phase& phase) : PhaseWriter(phase) { choose_kept(); }
  int64_t units() const override {
    int64_t result = 1;
    for (size_t i = 0; i < outer_; ++i) result *= e_.loops[i];
    return result;
  }

 private:
  bool is_of_unit(int t) const { return !varies_along(varies_[t], inner_loops()); }
  std::string kept(int t) const override {
    if (is_of_unit(t) && now_ != nothing_yet) return t < 0 ? "" : name(t);
    return kept_now_.contains(t) ? c10::str("b", t, "[", row_place(), "]") : "";
  }

  std::string row_place() const {
    Term::Numbers strides = e_.loops;
    std::fill(strides.begin(), strides.end(), 0);
    int64_t stride = 1;
    for (size_t i = e_.loops.size(); i-- > outer_;) {
      strides[i] = stride;
      stride *= e_.loops[i];
    }
    return place(strides);
  }

  std::string place(const Term::Numbers& strides) const override {
    std::string result = "0";
    for (size_t i = outer_; i < e_.loops.size(); ++i) {
      if (strides[i] != 0)
        result += c10::str(" + ", i + 1 == e_.loops.size() ? "v" : c10::str("i", i), " * ", marked_size(strides[i]));
    }
    return in_loop_ ? result : "0";
  }
  std::string unit_place(const Term::Numbers& strides) const override {
    std::string result;
    for (size_t i = 0; i < outer_; ++i) {
      if (strides[i] != 0) result += c10::str(" + i", i, " * ", marked_size(strides[i]));
    }
    return result;
  }

  /// Chooses terms that several loops over a row need and that are more expensive to compute than to read back.
  void choose_kept() {
    if (inner_places() > longest_kept_row) return;
    now_ = 0;
    std::vector<int> loops(e_.terms.size(), 0);
    for (int level = 0; level <= levels(); ++level) {
      for (const int t : needed(roots_at(level))) ++loops[t];
    }
    for (size_t t = 0; t < loops.size(); ++t) {
      if (loops[t] > 1 && is_expensive(e_.terms[t].function) && !is_of_unit(static_cast<int>(t)))
        to_keep_.insert(static_cast<int>(t));
    }
    now_ = nothing_yet;
  }

  /// Returns: the terms that the loop over a row after `level` levels of reductions needs
  std::vector<int> roots_at(int level) const {
    std::vector<int> roots = arguments_of(reductions_at(level));
    for (size_t s = 0; level == levels() && s < e_.stores.size(); ++s) {
      if (is_written_inside(s)) roots.push_back(e_.stores[s].term);
    }
    return roots;
  }

  void write_first_unit() override { write_first_position(outer_, "begin"); }
  void write_next_unit() override { write_next_position(outer_); }
  void write_unit() override {
    write_pointers();
    for (const int t : to_keep_) out_ += c10::str(value_type(e_.terms[t].type), " b", t, "[", row_capacity, "];\n");
    kept_now_.clear();
    for (now_ = 0; now_ <= levels(); ++now_) {
      write_unit_terms(now_);
      if (const auto reductions = reductions_at(now_); !reductions.empty()) write_reductions(reductions);
    }
    write_stores();
    now_ = nothing_yet;
  }

  void write_unit_terms(int level) {
    for (size_t t = 0; t < e_.terms.size(); ++t) {
      const Term& term = e_.terms[t];
      const bool leaf = term.function == Function::constant || term.function == Function::number;
      if (leaf || graph::is_reduction(term.function) || level_[t] != level || !is_of_unit(static_cast<int>(t)))
        continue;
      now_ = nothing_yet;
      write_term(static_cast<int>(t));
      now_ = level;
    }
  }

  void open_loops() {
    for (size_t i = outer_; i + 1 < e_.loops.size(); ++i)
      out_ += c10::str("for (i64 i", i, " = 0; i", i, " < ", marked_size(e_.loops[i]), "; ++i", i, ") {\n");
  }
  void close_loops() {
    for (size_t i = outer_; i + 1 < e_.loops.size(); ++i) out_ += "}\n";
  }

  /// Writes the body of a loop over a row: terms, and stores of those that are kept.
  void write_body(const std::vector<int>& roots) {
    in_loop_ = true;
    const std::vector<int> terms = needed(roots);
    std::vector<int> keep;
    for (const int t : terms) {
      write_term(t);
      if (!to_keep_.contains(t) || kept_now_.contains(t)) continue;
      out_ += c10::str("b", t, "[", row_place(), "] = ", name(t), ";\n");
      keep.push_back(t);
    }
    kept_after_.insert(keep.begin(), keep.end());
  }
  void end_body() {
    in_loop_ = false;
    kept_now_.insert(kept_after_.begin(), kept_after_.end());
  }

  void write_reductions(const std::vector<int>& reductions) {
    for (const int t : reductions) {
      const ReductionCode code = reduction_code(e_.terms[t]);
      out_ += c10::str(code.total_type, " a", t, " = ", code.start, ";\n");
      if (code.watches_nan) out_ += c10::str("i32 n", t, " = 0;\n");
    }
    open_loops();
    const std::string length = marked_size(e_.loops.back());
    out_ += c10::str("for (i64 c = 0; c < ", length, "; c += ", part_length, ") { const i64 d = c + ", part_length,
                     " < ", length, " ? c + ", part_length, " : ", length, ";\n");
    for (const int t : reductions) {
      const ReductionCode code = reduction_code(e_.terms[t]);
      out_ += c10::str(code.part_type, " q", t, " = ", code.start, ";\n");
    }
    out_ += simd(reductions) + "for (i64 v = c; v < d; ++v) {\n";
    write_body(arguments_of(reductions));
    for (const int t : reductions) {
      const ReductionCode code = reduction_code(e_.terms[t]);
      const std::string argument = text_of(e_.terms[t].terms[0]);
      out_ += code.joined(c10::str("q", t), argument) + ";\n";
      if (code.watches_nan) out_ += c10::str("n", t, " |= ", argument, " != ", argument, ";\n");
    }
    end_body();
    out_ += "}\n";
    for (const int t : reductions)
      out_ += reduction_code(e_.terms[t]).joined(c10::str("a", t), c10::str("q", t)) + ";\n";
    out_ += "}\n";
    close_loops();
    name_totals(reductions);
  }

  void name_totals(const std::vector<int>& reductions) {
    for (const int t : reductions) {
      const std::string type = value_type(e_.terms[t].type);
      const std::string total = c10::str("(", type, ")a", t);
      out_ += c10::str("const ", type, " ", name(t), " = ",
                       reduction_code(e_.terms[t]).watches_nan
                           ? c10::str("n", t, " ? (", type, ")__builtin_nan(\"\") : ", total)
                           : total,
                       ";\n");
    }
  }

  void write_stores() {
    now_ = levels();
    std::vector<int> roots = {};
    for (size_t s = 0; s < e_.stores.size(); ++s) {
      if (is_written_inside(s)) roots.push_back(e_.stores[s].term);
    }
    if (!roots.empty()) {
      open_loops();
      out_ += simd({}) + c10::str("for (i64 v = 0; v < ", marked_size(e_.loops.back()), "; ++v) {\n");
      write_body(roots);
      for (size_t s = 0; s < e_.stores.size(); ++s) {
        if (is_written_inside(s)) write_store(s);
      }
      end_body();
      out_ += "}\n";
      close_loops();
    }
    for (size_t s = 0; s < e_.stores.size(); ++s) {
      if (!is_written_inside(s)) write_store(s);
    }
  }

  static constexpr int nothing_yet = -1;
  int now_ = nothing_yet;  ///< level whose terms of the unit already have names
  bool in_loop_ = false;
  std::set<int> to_keep_, kept_now_, kept_after_;
};

constexpr int64_t rows_of_part = 32;   ///< number of rows that are added in float before the sums are added to doubles
constexpr int64_t most_columns = 256;  ///< maximum number of columns in a block of a phase with reductions

/// Writes columns: a unit is a block of columns. Each reduction has an array with one element per column.
class ColumnWriter : public PhaseWriter {
 public:
  ColumnWriter(const Phase& phase, int64_t block) : PhaseWriter(phase), block_(block) {}

 protected:
  void write_unit() final {
    unit_is_known_ = false;
    write_block();
    write_pointers();
    for (size_t t = 0; t < e_.terms.size(); ++t) {
      const Term& term = e_.terms[t];
      const bool leaf = term.function == Function::constant || term.function == Function::number;
      if (!leaf && is_of_unit(static_cast<int>(t))) write_term(static_cast<int>(t));
    }
    unit_is_known_ = true;
    for (int level = 0; level < levels(); ++level) {
      if (const auto reductions = reductions_at(level); !reductions.empty()) write_reductions(reductions);
    }
    write_stores();
  }

  // The number of blocks is computed by the code: a marked size has another skeleton if it is 1.
  void write_first_unit() override {
    const std::string block = marked_size(block_), all = marked_size(columns());
    if (outer_ > 1) {
      out_ += c10::str("const i64 blocks = (", all, " + ", block, " - 1) / ", block, ";\n");
      out_ += c10::str("i64 low = begin % blocks * ", block, ";\n");
      write_first_position(outer_ - 1, "begin / blocks");
    } else {
      out_ += c10::str("i64 low = begin * ", block, ";\n");
    }
  }
  void write_next_unit() override {
    out_ += c10::str("low += ", marked_size(block_), ";\n");
    if (outer_ < 2) return;
    out_ += c10::str("if (low >= ", marked_size(columns()), ") { low = 0;\n");
    write_next_position(outer_ - 1);
    out_ += "}\n";
  }
  virtual void write_block() {
    const std::string block = marked_size(block_), all = marked_size(columns());
    out_ += c10::str("const i64 count = low + ", block, " < ", all, " ? ", block, " : ", all, " - low;\n");
  }

 public:
  int64_t units() const override {
    int64_t result = blocks();
    for (size_t i = 0; i + 1 < outer_; ++i) result *= e_.loops[i];
    return result;
  }

 private:
  int64_t columns() const { return outer_ > 0 ? e_.loops[outer_ - 1] : 1; }
  int64_t blocks() const { return (columns() + block_ - 1) / block_; }
  /// True if the term is the same at all places of a unit, and can be computed at its beginning.
  bool is_of_unit(int t) const {
    const uint64_t column = outer_ > 0 ? bit(outer_ - 1) : 0;
    return level_[t] == 0 && !varies_along(varies_[t], inner_loops() | column);
  }

  std::string kept(int t) const override {
    if (is_of_unit(t)) return unit_is_known_ ? name(t) : "";
    if (!graph::is_reduction(e_.terms[t].function)) return "";
    const std::string type = value_type(e_.terms[t].type), total = c10::str("(", type, ")a", t, "[v]");
    return reduction_code(e_.terms[t]).watches_nan ? c10::str("n", t, "[v] ? (", type, ")__builtin_nan(\"\") : ", total)
                                                   : total;
  }

  std::string place(const Term::Numbers& strides) const override {
    if (!in_loop_) return "0";
    std::string result = "0";
    if (outer_ > 0 && strides[outer_ - 1] != 0) result += c10::str(" + v * ", marked_size(strides[outer_ - 1]));
    for (size_t i = outer_; inside_ && i < e_.loops.size(); ++i) {
      if (strides[i] != 0) result += c10::str(" + i", i, " * ", marked_size(strides[i]));
    }
    return result;
  }
  std::string unit_place(const Term::Numbers& strides) const override {
    std::string result;
    for (size_t i = 0; i + 1 < outer_; ++i) {
      if (strides[i] != 0) result += c10::str(" + i", i, " * ", marked_size(strides[i]));
    }
    if (outer_ > 0 && strides[outer_ - 1] != 0) result += c10::str(" + low * ", marked_size(strides[outer_ - 1]));
    return result;
  }

  void open_columns() {
    out_ += "#pragma omp simd\nfor (i64 v = 0; v < count; ++v) {\n";
    in_loop_ = true;
  }
  void close_columns() {
    out_ += "}\n";
    in_loop_ = false;
  }

  void open_loops(size_t last) {
    for (size_t i = outer_; i < last; ++i)
      out_ += c10::str("for (i64 i", i, " = 0; i", i, " < ", marked_size(e_.loops[i]), "; ++i", i, ") {\n");
    inside_ = true;
  }
  void close_loops(size_t last) {
    for (size_t i = outer_; i < last; ++i) out_ += "}\n";
    inside_ = false;
  }

  void declare(const std::string& type, const std::string& array, const std::string& start) {
    out_ += c10::str(type, " ", array, "[", most_columns, "];\nfor (i64 v = 0; v < count; ++v) ", array,
                     "[v] = ", start, ";\n");
  }

  void write_reductions(const std::vector<int>& reductions) {
    for (const int t : reductions) {
      const ReductionCode code = reduction_code(e_.terms[t]);
      declare(code.total_type, c10::str("a", t), code.start);
      if (code.watches_nan) declare("i32", c10::str("n", t), "0");
    }
    const size_t last = e_.loops.size() - 1;
    const std::string rows = marked_size(e_.loops[last]);
    open_loops(last);
    out_ += c10::str("for (i64 c = 0; c < ", rows, "; c += ", rows_of_part, ") {\nconst i64 d = c + ", rows_of_part,
                     " < ", rows, " ? c + ", rows_of_part, " : ", rows, ";\n");
    for (const int t : reductions) {
      const ReductionCode code = reduction_code(e_.terms[t]);
      declare(code.part_type, c10::str("q", t), code.start);
    }
    out_ += c10::str("for (i64 i", last, " = c; i", last, " < d; ++i", last, ") {\n");
    open_columns();
    write_terms(arguments_of(reductions));
    for (const int t : reductions) {
      const ReductionCode code = reduction_code(e_.terms[t]);
      const std::string argument = text_of(e_.terms[t].terms[0]);
      out_ += code.joined(c10::str("q", t, "[v]"), argument) + ";\n";
      if (code.watches_nan) out_ += c10::str("n", t, "[v] |= ", argument, " != ", argument, ";\n");
    }
    close_columns();
    out_ += "}\n";
    open_columns();
    for (const int t : reductions)
      out_ += reduction_code(e_.terms[t]).joined(c10::str("a", t, "[v]"), c10::str("q", t, "[v]")) + ";\n";
    close_columns();
    out_ += "}\n";
    close_loops(last);
  }

  void write_stores(bool inside) {
    std::vector<int> roots;
    for (size_t s = 0; s < e_.stores.size(); ++s) {
      if (is_written_inside(s) == inside) roots.push_back(e_.stores[s].term);
    }
    if (roots.empty()) return;
    if (inside) open_loops(e_.loops.size());
    open_columns();
    write_terms(roots);
    for (size_t s = 0; s < e_.stores.size(); ++s) {
      if (is_written_inside(s) == inside) write_store(s);
    }
    close_columns();
    if (inside) close_loops(e_.loops.size());
  }
  void write_stores() {
    write_stores(true);
    write_stores(false);
  }

  int64_t block_;  ///< places per unit
  bool unit_is_known_ = false, in_loop_ = false, inside_ = false;
};

/// Writes a table: a unit is a block of one item.
class TableWriter : public ColumnWriter {
 public:
  TableWriter(const Phase& phase, const Table& table) : ColumnWriter(phase, Table::block), table_(table) {}
  int64_t units() const override { return table_.units(); }
  std::string write() override {
    out_ = table_.text() +
           "i64 at = 0;\nwhile (items[at + 1].first <= begin) ++at;\nfor (i64 u = begin; u < end; ++u) {\n";
    write_unit();
    return std::move(out_) + "}\n";
  }

 private:
  void write_first_unit() override {}
  void write_next_unit() override {}
  void write_block() override {
    out_ += c10::str(
        "while (items[at + 1].first <= u) ++at;\nconst Item& item = items[at];\nconst i64 low = (u - item.first) * ",
        Table::block, ";\nconst i64 count = item.places - low < ", Table::block,
        " ? item.places - low : ", Table::block, ";\n");
    write_numbers();
  }
  std::string base(bool, int index, int64_t) override {
    return c10::str("(item.base[", index, "] < 0 ? results[-1 - item.base[", index, "]] : operands[item.base[", index,
                    "]]) + item.offset[", index, "]");
  }
  std::string number(int index) override { return c10::str("numbers[item.number[", index, "]]"); }

  const Table& table_;
};

int64_t product(const Term::Numbers& sizes, size_t begin, size_t end) {
  int64_t result = 1;
  for (size_t i = begin; i < end; ++i) result *= sizes[i];
  return result;
}

/// Returns: the number of places, over all accesses, that are adjacent along a loop
int64_t side_by_side(const graph::Expression& nest, size_t loop) {
  int64_t count = 0;
  const auto add = [&](const Term::Numbers& strides) {
    if (strides[loop] != 1) return;
    int64_t places = 1;
    for (size_t i = 0; i < nest.loops.size(); ++i) places *= strides[i] != 0 ? nest.loops[i] : 1;
    count += places;
  };
  for (const Term& term : nest.terms) {
    if (term.function == Function::load) add(term.strides);
  }
  for (const graph::Store& store : nest.stores) add(store.strides);
  return count;
}

bool prefers_columns(const Phase& phase) {
  const size_t loops = phase.nest.loops.size();
  if (phase.outer == loops) return true;
  return phase.outer > 0 && side_by_side(phase.nest, phase.outer - 1) > side_by_side(phase.nest, loops - 1);
}

/// Returns: a block size that is large enough to hide the start of a block, and small enough to give all threads work
int64_t block_of(const Phase& phase) {
  if (phase.outer == phase.nest.loops.size()) return 4096;
  const int64_t columns = phase.nest.loops[phase.outer - 1], others = product(phase.nest.loops, 0, phase.outer - 1);
  int64_t block = most_columns;
  while (block > 32 && others * ((columns + block - 1) / block) < 8) block /= 2;
  return block;
}

/// Returns: the cost of one place, as the number of bytes that could be moved in the same time
int64_t place_bytes(const Phase& phase, bool at_all_places) {
  int64_t result = 0;
  const auto varies = phase.nest.varies();
  const uint64_t inner = ~((uint64_t{1} << phase.outer) - 1);
  const auto counts = [&](uint64_t bits) {
    return at_all_places == (phase.outer == phase.nest.loops.size() || (bits & inner));
  };
  for (size_t t = 0; t < phase.nest.terms.size(); ++t) {
    const Term& term = phase.nest.terms[t];
    if (!counts(varies[t])) continue;
    result += 1;
    if (term.function == Function::load) result += static_cast<int64_t>(c10::elementSize(term.type));
    if (is_expensive(term.function)) result += 8;
  }
  for (const graph::Store& store : phase.nest.stores) {
    if (counts(varies[store.term])) result += 2 * static_cast<int64_t>(c10::elementSize(store.type));
  }
  return result;
}

}  // namespace

WrittenPhase write_table(const Table& table) {
  if (table.items.size() < 2) return write_phase(table.alone);
  TableWriter writer(table.phase, table);
  WrittenPhase result{.body = writer.write(), .units = writer.units()};
  result.unit_bytes = Table::block * place_bytes(table.phase, true);
  return result;
}

WrittenPhase write_phase(const Phase& phase) {
  std::unique_ptr<PhaseWriter> writer;
  if (prefers_columns(phase))
    writer = std::make_unique<ColumnWriter>(phase, block_of(phase));
  else
    writer = std::make_unique<RowWriter>(phase);
  WrittenPhase result;
  result.body = writer->write();
  result.units = writer->units();
  const int64_t places = product(phase.nest.loops, 0, phase.nest.loops.size());
  const int64_t outer = product(phase.nest.loops, 0, phase.outer);
  const int64_t bytes = places * place_bytes(phase, true) + outer * place_bytes(phase, false);
  result.unit_bytes = std::max<int64_t>(bytes / std::max<int64_t>(result.units, 1), 1);
  return result;
}

}  // namespace bellows::compile_detail
