#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace bellows::inspect {

/// Floating-point operations of one call. A multiplication with its addition counts as two.
/// Params: inputs, outputs – in the order of the schema
using FlopFormula = int64_t (*)(c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<c10::IValue> outputs);

/// The formula of an operator such as "aten::mm". Null if the operator counts no FLOPs.
///
/// Includes the formulas of PyTorch's flop counter: matrix multiplications, convolutions and their backward, attention
/// and its backward (a causal mask is not subtracted). In addition: aten::_scaled_dot_product_flash_attention_for_cpu
/// and its backward, matrix–vector multiplications, aten::dot, and the fused linear and convolution operators of oneDNN
/// and MKL. Element-wise operators count no FLOPs.
/// Ref: torch.utils.flop_counter.flop_registry
FlopFormula flop_formula(std::string_view op);

/// Adds or replaces a formula, for example for your own operators.
/// Threads: thread-safe; counters that are already running may keep the old formula
void register_flop_formula(std::string op, FlopFormula formula);

}  // namespace bellows::inspect
