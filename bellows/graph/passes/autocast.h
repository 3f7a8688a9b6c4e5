#pragma once

#include <c10/core/ScalarType.h>

#include "bellows/graph/passes/pass.h"

namespace bellows::graph {

/// Rewrites a program of fp32 operators into what the same code gives under libtorch's autocast on a CPU: products (linears, convolutions,
/// attention, and their gradients) read and give `dtype`, and so do pointwise operators, norms and poolings that read nothing else. All
/// other operators get fp32, softmax, reductions and losses among them. What is cast once serves all who read it. What the program leaves
/// behind (results, gradients of parameters, whatever it writes) keeps its dtype.
///
/// Programs that ran under autocast already stay as they are, and so do operators of doubles and integers. It fires once a product.
/// Params:   dtype – bf16 or half
/// Numerics: products, and what follows them, round to `dtype`; gradients are in the dtype that the forward pass read. Bias gradients,
///           means and softmax, which autocast rounds, stay fp32
/// Throws:   c10::ValueError – another dtype
/// Ref:      aten/src/ATen/autocast_mode.cpp, AutocastCPU; Micikevicius et al., Mixed precision training, ICLR 2018
Pass autocast_pass(c10::ScalarType dtype);

}  // namespace bellows::graph
