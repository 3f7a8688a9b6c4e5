#pragma once

#include <c10/core/ScalarType.h>

#include "bellows/graph/passes/pass.h"

namespace bellows::graph {

/// Rewrites a program of fp32 operators to what the same code computes under libtorch's autocast on the CPU. Linears,
/// convolutions, attention and their gradients read and return `dtype`. Pointwise operators, norms and poolings do the
/// same if all their inputs are in `dtype`.
/// All other operators get fp32, including softmax, reductions and losses. A value is cast once for all of its readers.
/// Values that outlive the program (results, gradients of parameters, all written buffers) keep their dtype.
///
/// Programs that already ran under autocast are unchanged, as are operators on doubles and integers. The pass fires
/// once per matrix multiplication, convolution, attention, or gradient of one.
/// Params:   dtype – bf16 or half
/// Numerics: these operators, and those that follow them, round to `dtype`. Gradients have the dtype that the forward
///           pass read. Bias gradients, means and softmax stay in fp32, while autocast rounds them.
/// Throws:   c10::ValueError if `dtype` is another one
/// Ref:      aten/src/ATen/autocast_mode.cpp, AutocastCPU; Micikevicius et al., Mixed precision training, ICLR 2018
Pass autocast_pass(c10::ScalarType dtype);

}  // namespace bellows::graph
