#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bellows/graph/passes/expression.h"
#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Selects the passes that run, and sets their limits.
struct PassOptions {
  bool exact = false;                  ///< run only passes that keep results bit-identical
  std::vector<std::string> without{};  ///< names of passes to skip
  /// Maximum number of instructions in a group.
  size_t max_group = 64;
  /// Whether code can be generated for a group's expression. Fusion makes only groups for which this function returns
  /// true. If it is empty, all groups are allowed.
  std::function<bool(const Expression&)> can_generate{};
  /// Use matmul kernels whose results for a row do not depend on the number of rows, where such kernels exist.
  bool batch_invariant = false;
  bool check = false;  ///< call Program::check() after each pass
};

/// An optimization of programs that preserves their results within a tolerance.
struct Pass {
  std::string name;
  std::string what;      ///< description in one sentence
  double tolerance = 0;  ///< 0 if bit-identical; otherwise the maximum relative difference of fp32 results
  /// Changes the program and returns the number of changes.
  std::function<int64_t(Program&, const PassOptions&)> run;
};

/// Statistics of a run of passes.
struct PassReport {
  struct Row {
    std::string name;
    int64_t fired = 0;
    size_t instructions_before = 0, instructions_after = 0;
    size_t bytes_before = 0, bytes_after = 0;  ///< bytes that instructions read and write
  };
  std::vector<Row> rows{};

  int64_t fired(std::string_view pass) const;
  std::string to_text() const;
};

/// Returns the passes of Bellows in the order in which they run. You can build your own list from these and other
/// passes.
const std::vector<Pass>& passes();

/// Inserts a pass before the first pass with this name.
/// Throws: c10::ValueError if the list has no pass with this name
void insert_before(std::string_view name, Pass pass, std::vector<Pass>& list);

/// Runs the passes in order, except those that the options exclude.
/// Throws: c10::ValueError if `without` contains a name that no pass has. With `check`: exceptions of Program::check(),
///         with the name of the pass
PassReport run_passes(Program& program, const PassOptions& options = {}, std::span<const Pass> list = passes());

/// Returns the number of bytes that an instruction reads and writes. Each element is counted once. For a group, values
/// that are used only within the group are not counted.
size_t bytes_moved(const Instruction& instruction);
size_t bytes_moved(const Program& program);

}  // namespace bellows::graph
