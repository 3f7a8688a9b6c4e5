#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bellows/graph/passes/pass.h"

namespace bellows::graph {

/// The result of the pass "recompute" for one program.
struct RecomputeReport {
  double budget = 1;
  size_t peak_before = 0, peak_after = 0;  ///< physical_peak() without and with recomputation, in bytes
  int64_t repeated = 0;                    ///< instructions that run once more
  double work = 0;  ///< estimated time of these instructions, as a fraction of the estimated time of the program

  /// Returns whether the peak is within the budget. If not, `peak_after` is the smallest peak that was found.
  bool is_met() const;
  /// Returns one line for explain().
  std::string to_text() const;
};

struct RecomputeOptions {
  double budget = 1;          ///< in (0, 1]
  std::vector<Pass> after{};  ///< the passes that will run after this pass; used to determine the peak of each plan
  std::function<void(const RecomputeReport&)> report{};  ///< called once for each program
};

/// Creates a pass that reduces the peak memory of a program to `budget` times its original peak. It frees values
/// between two uses that are far apart, such as activations between forward and backward, and computes them again
/// before the second use. Values with the best ratio of saved memory to repeated work are chosen first.
///
/// The pass tries plans in the order of their repeated work. For each plan it runs the passes `after` on a copy of the
/// program, and takes the first plan whose physical peak is within the budget. The plans do not depend on the budget.
/// Therefore, a smaller budget never gives a higher peak. If no plan is within the budget, the pass takes the plan with
/// the smallest peak. The report states this.
///
/// Random operators, operators that write, and operators of other libraries are never repeated. A batch norm in
/// training mode is repeated without the update of its running statistics.
/// Numerics: bit-identical, because a repeated instruction has the same operands as the original
/// Cost:     runs the passes `after` up to 25 times
/// Throws:   c10::ValueError if the budget is not in (0, 1]
/// Ref:      Chen et al., Training deep nets with sublinear memory cost, 2016; torch/_functorch/partitioners.py
Pass recompute_pass(RecomputeOptions options);

/// Returns the bytes that a run of the program allocates at the same time: the arena, and the results that operators
/// allocate. Inputs, constants and outputs are not included.
/// Params: is_generated – returns whether a group or operator without a kernel will get one, so that its results will be
///                        in the arena
size_t physical_peak(const Program& program, const std::function<bool(const Instruction&)>& is_generated = {});

}  // namespace bellows::graph
