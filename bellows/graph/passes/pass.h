#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bellows/graph/passes/expression.h"
#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Which passes run, and how far they may go.
struct PassOptions {
  bool exact = false;                  ///< only passes that leave every bit as it is
  std::vector<std::string> without{};  ///< names of passes that do not run
  /// Instructions that one group may hold.
  size_t max_group = 64;
  /// Whether code can be made for what a group computes; without it, for all. Fusion asks, and makes no group where it says no.
  std::function<bool(const Expression&)> can_generate{};
  bool check = false;  ///< Program::check() after each pass
};

/// Something that makes a program better, and leaves what it computes.
struct Pass {
  std::string name;
  std::string what;      ///< for people, in one sentence
  double tolerance = 0;  ///< 0: exact, bit for bit; otherwise the relative difference that results may have in fp32
  /// Changes the program, and returns how often it found something to do.
  std::function<int64_t(Program&, const PassOptions&)> run;
};

/// What passes did.
struct PassReport {
  struct Row {
    std::string name;
    int64_t fired = 0;
    size_t instructions_before = 0, instructions_after = 0;
    size_t bytes_before = 0, bytes_after = 0;  ///< that instructions read and write
  };
  std::vector<Row> rows{};

  int64_t fired(std::string_view pass) const;
  std::string to_text() const;
};

/// The passes of Bellows, in the order in which they run. A list of your own may hold some of them and others.
const std::vector<Pass>& passes();

/// Puts a pass in front of the first one of this name.
/// Throws: c10::ValueError – the list has none
void insert_before(std::string_view name, Pass pass, std::vector<Pass>& list);

/// Runs passes one after another, each that the options let run.
/// Throws: c10::ValueError – a name in `without` that no pass has; with `check`, what Program::check() throws, with the pass named
PassReport run_passes(Program& program, const PassOptions& options = {}, std::span<const Pass> list = passes());

/// What an instruction reads and writes, in bytes: each place once, groups without what stays inside.
size_t bytes_moved(const Instruction& instruction);
size_t bytes_moved(const Program& program);

}  // namespace bellows::graph
