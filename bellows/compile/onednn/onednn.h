#pragma once

#include <string>
#include <vector>

#include "bellows/graph/passes/pass.h"
#include "bellows/graph/program/program.h"

namespace bellows::compile_detail {

/// What became of a program's layers.
struct OnednnReport {
  int convolutions = 0;  ///< passes of convolutions: forward, and each gradient
  int norms = 0, pools = 0;
  int linears = 0;
  int followed = 0;  ///< operators that took over the order of memory of what they read
  int fused = 0;     ///< operators that became part of a convolution or linear
  int reorders = 0;  ///< copies into another order of memory, in each call
  int packed = 0;    ///< the same, made once and for all
  std::string to_text() const;
};

/// Whether this library was built with oneDNN. Without, use_onednn() changes nothing.
bool has_onednn();

/// Puts oneDNN's primitives in the place of convolutions, batch norms and pooling of images, and of their gradients. Images stay in
/// oneDNN's order, channels last, from one to the next and through pointwise operators between them; where something else reads
/// one, it is copied back once. Weights are packed as each primitive likes them: constants now, others in each call. Linears whose
/// weights are constants become primitives, too, with the activations and sums behind them.
/// Params:   program – in functional form (graph/functionalize.h), before operators are put into groups; batch norms in evaluation
///           as the pass "evaluation" writes them
/// Numerics: sums in another order than libtorch's: a convolution's errors against fp64 are no larger than twice libtorch's; a batch
///           norm's stay within 32 last places of the largest value (tests/compile/onednn_test.cpp)
/// Threads:  any; kernels run on OpenMP, as libtorch's do
OnednnReport use_onednn(graph::Program& program);

/// graph::passes() with this as a pass, "onednn", in front of those that make groups.
std::vector<graph::Pass> passes_with_onednn();

}  // namespace bellows::compile_detail
