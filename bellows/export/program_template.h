#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bellows/export/recorder.h"
#include "bellows/export/size_formula.h"
#include "bellows/export/sizes.h"
#include "bellows/graph/program/program.h"

namespace bellows::export_detail {

/// A program whose sizes depend on symbols, such as the size of a batch. All sizes, strides, offsets, sizes of buffers and
/// integer arguments of its operators can depend on them.
class ProgramTemplate {
 public:
  /// A number that varies. Numbers are counted in a fixed order of all numbers of the program.
  struct Slot {
    size_t number = 0;
    SizeFormula formula{};
  };

  /// A program, and the tensors that it computes. Each one is an output or an input of the program.
  struct Instance {
    graph::Program program{};
    std::vector<graph::Operand> results{};
  };

  ProgramTemplate() = default;
  /// Params: base – has the first size of each symbol
  ProgramTemplate(Instance base, std::vector<std::string> symbols, std::vector<Slot> slots);

  /// Finds the formulas of all numbers that differ between recordings.
  /// Params: calls – recordings of one function, with the sizes that express() needs
  /// Throws: c10::ValueError if the recordings differ in more than sizes, or if a size is not a SizeFormula. The message
  ///         names the operator
  static ProgramTemplate of(const std::vector<RecordedCall>& calls, const std::vector<Symbol>& symbols);

  /// Returns the program for these sizes, one for each symbol.
  /// Throws: c10::ValueError if a size becomes negative
  Instance instantiate(std::span<const int64_t> sizes) const;

  const Instance& base() const { return base_; }
  const std::vector<std::string>& symbols() const { return symbols_; }
  const std::vector<Slot>& slots() const { return slots_; }

 private:
  Instance base_{};
  std::vector<std::string> symbols_{};
  std::vector<Slot> slots_{};
};

}  // namespace bellows::export_detail
