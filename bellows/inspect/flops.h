#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace bellows::inspect {

/// Returns the number of floating-point operations of one call. A multiplication with its addition counts as two
/// operations.
/// Params: inputs, outputs – arguments and results in the order of the schema
using FlopFormula = int64_t (*)(c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<c10::IValue> outputs);

/// Returns the formula of an operator such as "aten::mm". Returns null if there is no formula, in which case the
/// operator counts as 0 FLOPs.
///
/// The table contains the formulas of PyTorch's flop counter: matrix multiplications, convolutions, attention and their
/// backward passes. A causal mask does not reduce the count. The table also contains
/// aten::_scaled_dot_product_flash_attention_for_cpu and its backward, matrix–vector multiplications, aten::dot, and
/// the fused linear and convolution operators of oneDNN and MKL. Element-wise operators count as 0 FLOPs.
/// Ref: torch.utils.flop_counter.flop_registry
FlopFormula flop_formula(std::string_view op);

/// Adds or replaces a formula, for example for your own operators.
/// Threads: thread-safe. Counters that are already running may continue to use the old formula
void register_flop_formula(std::string op, FlopFormula formula);

/// Changes with each call of register_flop_formula(). Whoever stores formulas must look them up again.
/// Threads: thread-safe
int64_t flop_formula_version();

}  // namespace bellows::inspect
