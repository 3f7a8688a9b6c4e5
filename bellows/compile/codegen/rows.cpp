#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>

#include "bellows/compile/codegen/writer.h"

namespace bellows::compile_detail {
namespace {

using graph::Function;
using graph::Term;

constexpr int64_t part_length = 4096;       ///< so many floats are summed up before they go into a double
constexpr int64_t longest_kept_row = 8192;  ///< places of a row of which terms are kept on the stack

/// A unit is a row: all places that are reduced together. Its last loop is vector code.
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
    Term::Numbers strides(e_.loops.size(), 0);
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
        result += c10::str(" + ", i + 1 == e_.loops.size() ? "v" : c10::str("i", i), " * ", strides[i]);
    }
    return in_loop_ ? result : "0";
  }
  std::string unit_place(const Term::Numbers& strides) const override {
    std::string result;
    for (size_t i = 0; i < outer_; ++i) {
      if (strides[i] != 0) result += c10::str(" + i", i, " * ", strides[i]);
    }
    return result;
  }

  /// What is computed from several loops over a row, and costs more than reading it back.
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

  /// What the loop over a row after `level` reductions needs.
  std::vector<int> roots_at(int level) const {
    std::vector<int> roots = arguments_of(reductions_at(level));
    for (size_t s = 0; level == levels() && s < e_.stores.size(); ++s) {
      if (is_written_inside(s)) roots.push_back(e_.stores[s].term);
    }
    return roots;
  }

  void write_unit() override {
    if (outer_ > 0) decode_unit(outer_, "u");
    write_pointers();
    for (const int t : to_keep_) out_ += c10::str(value_type(e_.terms[t].type), " b", t, "[", inner_places(), "];\n");
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
      out_ += c10::str("for (i64 i", i, " = 0; i", i, " < ", e_.loops[i], "; ++i", i, ") {\n");
  }
  void close_loops() {
    for (size_t i = outer_; i + 1 < e_.loops.size(); ++i) out_ += "}\n";
  }

  /// The body of a loop over a row: terms, and what is kept of them.
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
    const int64_t length = e_.loops.back();
    const std::string end = length > part_length ? "d" : std::to_string(length);
    out_ += length > part_length
                ? c10::str("for (i64 c = 0; c < ", length, "; c += ", part_length, ") { const i64 d = c + ",
                           part_length, " < ", length, " ? c + ", part_length, " : ", length, ";\n")
                : "{ const i64 c = 0;\n";
    for (const int t : reductions) {
      const ReductionCode code = reduction_code(e_.terms[t]);
      out_ += c10::str(code.part_type, " q", t, " = ", code.start, ";\n");
    }
    out_ += simd(reductions) + c10::str("for (i64 v = c; v < ", end, "; ++v) {\n");
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
      out_ += simd({}) + c10::str("for (i64 v = 0; v < ", e_.loops.back(), "; ++v) {\n");
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
  int now_ = nothing_yet;  ///< what the unit knows by now is named
  bool in_loop_ = false;
  std::set<int> to_keep_, kept_now_, kept_after_;
};

}  // namespace

std::unique_ptr<PhaseWriter> make_row_writer(const Phase& phase) {
  return std::make_unique<RowWriter>(phase);
}

}  // namespace bellows::compile_detail
