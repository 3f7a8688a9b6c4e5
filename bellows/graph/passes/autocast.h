#pragma once

#include <c10/core/ScalarType.h>

#include "bellows/graph/passes/pass.h"

namespace bellows::graph {

/// Creates a pass that rewrites a program of fp32 operators. The rewritten program computes the same as the original
/// code under libtorch's autocast on the CPU:
/// - Linears, convolutions, attention and their gradients read and return `dtype`.
/// - Pointwise operators, norms and poolings read and return `dtype` if all their inputs have this dtype.
/// - All other operators read fp32, including softmax, reductions and losses.
/// A value is cast once for all of its readers. Values that outlive the program (results, gradients of parameters, all
/// written buffers) keep their dtype.
///
/// The pass does not change programs that already ran under autocast, or operators on doubles and integers. It reports
/// one change for each matrix multiplication, convolution and attention operator, and one for each of their gradients.
/// Params:   dtype – bf16 or half
/// Numerics: these operators, and the operators that follow them, round to `dtype`. Gradients have the dtype that the
///           forward pass read. Bias gradients, means and softmax stay in fp32, although autocast rounds them
/// Throws:   c10::ValueError if `dtype` is neither bf16 nor half
/// Ref:      aten/src/ATen/autocast_mode.cpp, AutocastCPU; Micikevicius et al., Mixed precision training, ICLR 2018
Pass autocast_pass(c10::ScalarType dtype);

}  // namespace bellows::graph
