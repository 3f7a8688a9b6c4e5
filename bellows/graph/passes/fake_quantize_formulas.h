#pragma once

#include <string_view>

#include "bellows/graph/passes/expression_maker.h"

namespace bellows::graph::detail {

/// Writes the expression of an operator of quantization-aware training: of a fake quantization and its mask, per tensor or
/// per channel, or of the operators of quant/training/range_operators.h.
/// Numerics: bit-identical to libtorch's kernels on the CPU. Halves are rounded to even. NaN becomes the smallest
///           integer, and so do values of channels whose integer would be 2^63 or more
/// Returns:  false if the operator is none of these, or if it computes in another type than float
bool write_fake_quantize(Maker& maker, std::string_view name);

}  // namespace bellows::graph::detail
