#include <c10/util/StringUtil.h>

#include <algorithm>

#include "bellows/compile/codegen/table.h"
#include "bellows/compile/codegen/writer.h"

namespace bellows::compile_detail {
namespace {

using graph::Function;
using graph::Term;

constexpr int64_t rows_of_part = 32;  ///< so many rows are summed up in floats before they go into doubles

/// A unit is a block of columns. What is reduced has an array, one place a column.
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

  virtual void write_block() {
    out_ += c10::str("const i64 low = u % ", blocks(), " * ", block_, ";\n");
    out_ += blocks() == 1 ? c10::str("const i64 count = ", columns(), ";\n")
                          : c10::str("const i64 count = low + ", block_, " < ", columns(), " ? ", block_, " : ",
                                     columns(), " - low;\n");
    if (outer_ > 1) decode_unit(outer_ - 1, c10::str("u / ", blocks()));
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
  /// The same for all places of a unit, and known when it begins.
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
    if (outer_ > 0 && strides[outer_ - 1] != 0) result += c10::str(" + v * ", strides[outer_ - 1]);
    for (size_t i = outer_; inside_ && i < e_.loops.size(); ++i) {
      if (strides[i] != 0) result += c10::str(" + i", i, " * ", strides[i]);
    }
    return result;
  }
  std::string unit_place(const Term::Numbers& strides) const override {
    std::string result;
    for (size_t i = 0; i + 1 < outer_; ++i) {
      if (strides[i] != 0) result += c10::str(" + i", i, " * ", strides[i]);
    }
    if (outer_ > 0 && strides[outer_ - 1] != 0) result += c10::str(" + low * ", strides[outer_ - 1]);
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
      out_ += c10::str("for (i64 i", i, " = 0; i", i, " < ", e_.loops[i], "; ++i", i, ") {\n");
    inside_ = true;
  }
  void close_loops(size_t last) {
    for (size_t i = outer_; i < last; ++i) out_ += "}\n";
    inside_ = false;
  }

  void declare(const std::string& type, const std::string& array, const std::string& start) {
    out_ += c10::str(type, " ", array, "[", std::min(block_, columns()), "];\nfor (i64 v = 0; v < count; ++v) ", array,
                     "[v] = ", start, ";\n");
  }

  void write_reductions(const std::vector<int>& reductions) {
    for (const int t : reductions) {
      const ReductionCode code = reduction_code(e_.terms[t]);
      declare(code.total_type, c10::str("a", t), code.start);
      if (code.watches_nan) declare("i32", c10::str("n", t), "0");
    }
    const size_t last = e_.loops.size() - 1;
    const int64_t rows = e_.loops[last];
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

  int64_t block_;
  bool unit_is_known_ = false, in_loop_ = false, inside_ = false;
};

/// A unit is a block of one item of a table.
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

/// How many places of all accesses lie side by side along a loop.
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

/// Long enough that a block's start costs nothing, short enough that threads have something to share.
int64_t block_of(const Phase& phase) {
  if (phase.outer == phase.nest.loops.size()) return 4096;
  const int64_t columns = phase.nest.loops[phase.outer - 1], others = product(phase.nest.loops, 0, phase.outer - 1);
  int64_t block = 256;
  while (block > 32 && others * ((columns + block - 1) / block) < 8) block /= 2;
  return block;
}

/// What one place costs, in bytes that could be moved meanwhile.
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

std::unique_ptr<PhaseWriter> make_column_writer(const Phase& phase, int64_t block) {
  return std::make_unique<ColumnWriter>(phase, block);
}

std::unique_ptr<PhaseWriter> make_table_writer(const Phase& phase, const Table& table) {
  return std::make_unique<TableWriter>(phase, table);
}

WrittenPhase write_table(const Table& table) {
  if (table.items.size() < 2) return write_phase(table.alone);
  const auto writer = make_table_writer(table.phase, table);
  WrittenPhase result{.body = writer->write(), .units = writer->units()};
  result.unit_bytes = Table::block * place_bytes(table.phase, true);
  return result;
}

WrittenPhase write_phase(const Phase& phase) {
  const auto writer = prefers_columns(phase) ? make_column_writer(phase, block_of(phase)) : make_row_writer(phase);
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
