#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bellows/graph/program/program_edit.h"

namespace bellows::graph::detail {

/// The bytes of the values that a program computes, at each instruction. A value that an update computes shares the
/// memory of the value before. Inputs, constants and outputs are not counted.
struct LiveBytes {
  /// Params: is_weightless – for each value, whether it needs no memory; may be empty
  explicit LiveBytes(const Program& program, const std::vector<bool>& is_weightless = {});

  Uses uses;
  std::vector<int64_t> at;    ///< for each instruction
  std::vector<int64_t> size;  ///< for each value: bytes that are counted while it is needed
  std::vector<int> last;  ///< for each value: the last instruction that needs it; INT_MAX if it outlives the program

  int64_t peak() const;
};

/// Plans with less and less memory for one program, each with more repeated instructions than the one before. The
/// planner lowers the estimated peak step by step. Each step frees one value between two uses, and inserts copies of the
/// instructions that compute this value before the second use. A copy reads the same operands as the original. Operands
/// that are no longer available at this place are also computed again, or are kept longer.
class RecomputePlanner {
 public:
  struct Plan {
    Program program;
    int64_t repeated = 0;  ///< instructions more than in the original program
    double work = 0;       ///< estimated microseconds of these instructions
  };

  /// Params: fuses – whether pointwise instructions and reductions will be fused. Values between neighbors then need no
  ///                 memory
  RecomputePlanner(const Program& program, bool fuses);

  double original_work() const { return original_work_; }
  /// Returns the next plan, or nothing if there is no other plan.
  std::optional<Plan> next();

 private:
  struct State {
    Program program;
    /// For each value, the value of the original program with the same content. All values with this content are its
    /// versions.
    std::vector<ValueId> origin{};
    std::vector<std::vector<ValueId>> versions{};  ///< by origin
    std::vector<bool> is_outer{};                  ///< for each value: whether it is an input or a constant
    std::vector<bool> is_constant{};               ///< for each value
    std::vector<int> order{};                      ///< by origin: the original instruction that computes it

    /// Returns the original instruction that computes the same, or -1 if the instruction has no results.
    int order_of(const Instruction& instruction) const;
  };
  struct Candidate;
  class Search;

  bool improve(double target);
  LiveBytes live_bytes_of(const State& state) const;
  static State repeated(const State& state, const Candidate& candidate, const LiveBytes& live);

  State state_;
  std::vector<bool> is_fusible_;  ///< for each value of the original program: whether its maker can be fused
  const bool fuses_;
  const size_t original_size_;
  double original_work_ = 0;
  int64_t original_peak_ = 0;
  int level_ = 0;
};

/// Returns a copy of an instruction that computes the same results and has no other effect, or nothing if this is not
/// possible.
std::optional<Instruction> repeatable(const Instruction& instruction);

}  // namespace bellows::graph::detail
