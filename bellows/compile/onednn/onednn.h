#pragma once

#include <string>
#include <vector>

#include "bellows/graph/passes/pass.h"
#include "bellows/graph/program/program.h"

namespace bellows::compile_detail {

/// Statistics on the use of oneDNN in a program.
struct OnednnReport {
  int convolutions = 0;  ///< convolutions; forward and each gradient are counted separately
  int norms = 0, pools = 0;
  int linears = 0;
  int quantized = 0;  ///< convolutions and linears with int8 weights; also counted above
  int matmuls = 0;    ///< batched matmuls
  int followed = 0;   ///< operators that work directly on channels-last images
  int fused = 0;      ///< operators that became part of a convolution or linear
  int reorders = 0;   ///< copies to a different memory order that every call makes
  int packed = 0;     ///< copies to a different memory order that are made only once, in advance
  std::string to_text() const;
};

/// Returns whether this library was built with oneDNN. If not, use_onednn() changes nothing.
bool has_onednn();

/// Returns whether oneDNN's sums of 8-bit products are exact on this processor. Without VNNI, sums of two products saturate
/// at 16 bits. use_onednn() then leaves int8 convolutions as they are, and int8 linears use kernels/int8_linear.h.
bool adds_int8_exactly();

/// Replaces convolutions, pooling and batch norms of images, and their gradients, with oneDNN primitives, and batch norms
/// in training mode with own kernels. Between these kernels, images stay in oneDNN's channels-last order. Pointwise
/// operators work directly on this order. If any other operator reads such an image, the image is copied to its original
/// order once. Weights are packed for each primitive. Constant weights are packed once in advance, and all other weights
/// are packed in each call. Linears with constant weights also become primitives, including the activations and
/// additions that follow them. Batched matmuls (bmm) become primitives if their left matrices are not transposed, or if
/// the processor is not from Intel; otherwise libtorch's matmuls are as fast.
/// Params:   program – must be in functional form (graph/passes/functionalize.h) and not have groups yet. Batch norms
///                     in evaluation mode must have the form that the pass "evaluation" produces
///           batch_invariant – see graph::PassOptions. Linears in fp32 then use kernels::packed_matmul()
/// Numerics: sums are computed in a different order than in libtorch. Compared with fp64, errors of convolutions are at
///           most twice as large as those of libtorch. Batch norms are as exact as those of libtorch
///           (tests/compile/onednn_test.cpp)
/// Threads:  thread-safe; kernels use OpenMP threads, like libtorch's kernels
OnednnReport use_onednn(graph::Program& program, bool batch_invariant = false);

/// Returns graph::passes() with the pass "onednn" inserted before the passes that make groups.
std::vector<graph::Pass> passes_with_onednn();

}  // namespace bellows::compile_detail
