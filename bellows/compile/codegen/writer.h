#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bellows/compile/codegen/scalar.h"
#include "bellows/compile/codegen/schedule.h"

namespace bellows::compile_detail {

/// What both ways to write a phase share: names of terms, places in memory, bodies of loops.
///
/// A unit is what one thread computes without asking others: a row, or a block of columns.
class PhaseWriter {
 public:
  explicit PhaseWriter(const Phase& phase);
  virtual ~PhaseWriter() = default;
  PhaseWriter(const PhaseWriter&) = delete;
  PhaseWriter& operator=(const PhaseWriter&) = delete;

  /// The body of a function that computes units `begin` to `end`.
  virtual std::string write();
  virtual int64_t units() const = 0;

 protected:
  virtual void write_unit() = 0;
  /// Where a term is read that stands before the loop; "": it is computed in the loop.
  virtual std::string kept(int term) const = 0;
  /// The place of an access in a loop, in elements from where the unit begins.
  virtual std::string place(const graph::Term::Numbers& strides) const = 0;
  /// The first byte of the buffer of an access, and what lies before the access's own.
  virtual std::string base(bool result, int index, int64_t offset_bytes);
  virtual std::string number(int index);
  /// What one unit adds to an address.
  virtual std::string unit_place(const graph::Term::Numbers& strides) const = 0;

  uint64_t bit(size_t loop) const { return uint64_t{1} << loop; }
  bool varies_along(uint64_t bits, uint64_t loops) const { return (bits & loops) != 0; }
  uint64_t inner_loops() const;
  int64_t inner_places() const;
  /// Terms that `roots` need and that are not kept, in order.
  std::vector<int> needed(const std::vector<int>& roots) const;
  /// Declares them.
  void write_terms(const std::vector<int>& roots);
  void write_term(int term);
  std::string name(int term) const { return "t" + std::to_string(term); }
  std::string text_of(int term) const;
  void write_store(size_t store);
  std::string stored(size_t store) const;
  /// Reductions whose arguments are known after `level` others.
  std::vector<int> reductions_at(int level) const;
  std::vector<int> arguments_of(const std::vector<int>& reductions) const;
  /// The reductions of `level` are made by loops that use what level 0 to `level` made.
  int levels() const;
  void decode_unit(size_t loops, const std::string& from);
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

/// Rows: a unit is all places that are reduced together, and the last loop over them is vector code.
std::unique_ptr<PhaseWriter> make_row_writer(const Phase& phase);
/// Columns: a unit is a block of places side by side along the last outer loop, which is vector code; reductions run over blocks.
/// Without reductions, too.
/// Params: block – places of a unit
std::unique_ptr<PhaseWriter> make_column_writer(const Phase& phase, int64_t block);

/// The phase as a function's body, and in how many units it may be cut. Chooses rows or columns by what lies side by side in memory.
struct WrittenPhase {
  std::string body{};
  int64_t units = 0;
  int64_t unit_bytes = 0;  ///< about as much time as moving these takes
};
WrittenPhase write_phase(const Phase& phase);

}  // namespace bellows::compile_detail
