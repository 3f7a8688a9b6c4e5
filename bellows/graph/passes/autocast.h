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

/// Creates a pass that runs operators in fp32 that the recorded code runs in `dtype`, for processors that compute fp32
/// faster. Matrix multiplications, convolutions and attention change if computing takes longer than reading the
/// operands, which are twice as large in fp32. The operators that follow them change, too. Values between such
/// operators stay in fp32, and are not rounded. Casts from fp32 whose results only such operators read, as those of
/// autocast, are left out. All other casts round. Values that outlive the program keep their dtype.
///
/// The pass reports one change for each matrix multiplication, convolution and attention operator, and one for each of
/// their gradients.
/// Params:   dtype – bf16 or half
/// Numerics: at least as accurate as in `dtype`, because fewer values are rounded
/// Cost:     values between the operators take twice the memory
/// Throws:   c10::ValueError if `dtype` is neither bf16 nor half
Pass widening_pass(c10::ScalarType dtype);

}  // namespace bellows::graph
