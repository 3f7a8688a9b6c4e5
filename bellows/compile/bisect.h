#pragma once

#include <c10/core/Storage.h>

#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "bellows/graph/passes/pass.h"
#include "bellows/graph/recording/frozen.h"

namespace bellows::compile_detail {

/// Names of the steps that are not in the list of passes: recomputation, code generation, and the pass of
/// graph/execution/branches.h.
inline constexpr const char *recompute_step = "recompute", *kernels_step = "kernels", *branches_step = "branches";

/// Settings that help to find a wrong pass. They are read from environment variables.
struct PassSettings {
  bool bisect = false;                 ///< BELLOWS_BISECT=1: check each program, and search for the wrong pass
  std::vector<std::string> without{};  ///< BELLOWS_WITHOUT_PASSES: names of passes to skip, such as "loops,attention"

  /// Params: known – the names that BELLOWS_WITHOUT_PASSES may contain
  /// Throws: c10::ValueError if a name is not in `known` (the message lists all names), or if BELLOWS_BISECT is neither
  ///         0 nor 1
  static PassSettings from_environment(const std::vector<std::string>& known);
};

/// Returns the passes whose names are not in `names`.
std::vector<graph::Pass> passes_without(const std::vector<std::string>& names, std::span<const graph::Pass> passes);

/// Copies buffers on the CPU. Null buffers stay null.
std::vector<c10::Storage> copies_of(std::span<const c10::Storage> buffers);

/// A program and the passes that optimize it.
struct OptimizationCheck {
  const graph::Program& recorded;        ///< the unchanged program, whose results are the expected ones
  std::span<const c10::Storage> inputs;  ///< copies of all its inputs; only copies of these copies are written
  /// Makes the program functional and converts frozen inputs to constants, before the passes.
  std::function<graph::Remaining(graph::Program&)> start;
  std::vector<graph::Pass> passes;  ///< in order, including code generation
  graph::PassOptions options{};
  std::stop_token stop{};
};

/// A pass that throws an exception or that makes results wrong.
struct WrongPass {
  std::string name;  ///< "" if the program is wrong before the first pass
  std::string text;  ///< describes the failure in one paragraph
};

/// Runs the unchanged program and the optimized program on copies of the same inputs, and compares all outputs and all
/// inputs that the program writes. If the optimized program fails or results differ, a binary search finds the shortest
/// prefix of the passes that fails. The last pass of this prefix is the wrong one. The search is repeated without this
/// pass until the results are right.
/// Numerics: t is the largest tolerance of a pass. The noise of a tensor is its largest change if the inputs and the
///           results of all operators change by random relative amounts up to t. An element may differ by t × the
///           largest value of its tensor, plus 4 × the noise. Of integers and booleans, 0.1 % of the elements may
///           differ, plus 4 × the elements that the noise changes. Without tolerances, results must be bit-identical,
///           unless the unchanged program itself gives different results in two runs
/// Cost:     two runs of the unchanged program and one run of the optimized program, with a copy of all inputs each. The
///           search optimizes and runs the program about log2(number of passes) times
/// Returns:  nothing if the results are right, or if the unchanged program throws an exception
/// Throws:   c10::Error if `stop` is requested
std::vector<WrongPass> find_wrong_passes(const OptimizationCheck& check);

}  // namespace bellows::compile_detail
