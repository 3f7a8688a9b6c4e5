#pragma once

#include <string>
#include <vector>

#include "bellows/graph/passes/pass.h"
#include "bellows/graph/program/program.h"

namespace bellows::compile_detail {

/// Statistics of the use of oneDNN in a program.
struct OnednnReport {
  int convolutions = 0;  ///< convolution passes: forward, and each gradient
  int norms = 0, pools = 0;
  int linears = 0;
  int followed = 0;  ///< operators that work directly on the memory order of their inputs
  int fused = 0;     ///< operators that became part of a convolution or linear
  int reorders = 0;  ///< copies to another memory order in each call
  int packed = 0;    ///< the same, but done once in advance
  std::string to_text() const;
};

/// True if this library was built with oneDNN. Otherwise, use_onednn() changes nothing.
bool has_onednn();

/// Replaces convolutions, batch norms and pooling of images, and their gradients, by oneDNN primitives. Images stay in
/// oneDNN's channels-last order from one primitive to the next, and through pointwise operators in between. If another
/// operator reads one, it is copied back once. Weights are packed for each primitive: constants once in advance, others
/// in each call. Linears with constant weights become primitives, too, including the activations and additions that
/// follow them.
/// Params:   program – in functional form (graph/functionalize.h), before operators are grouped; batch norms in
///           evaluation as written by the pass "evaluation"
/// Numerics: sums are computed in another order than in libtorch. Compared with fp64, the errors of a convolution are
///           at most twice libtorch's. Those of a batch norm are within 32 units in the last place of the largest value
///           (tests/compile/onednn_test.cpp).
/// Threads:  safe; kernels run on OpenMP, as libtorch's do
OnednnReport use_onednn(graph::Program& program);

/// Returns: graph::passes() with the pass "onednn" before those that make groups
std::vector<graph::Pass> passes_with_onednn();

}  // namespace bellows::compile_detail
