#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace bellows::inspect {

/// Floating-point operations of one call, a multiplication and its addition counted as two.
/// Params: inputs, outputs – in the schema's order
using FlopFormula = int64_t (*)(c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<c10::IValue> outputs);

/// The formula of an operator ("aten::mm"), or null: it counts nothing.
///
/// Those of PyTorch's flop counter: matrix products, convolutions and their backward, attention and its backward (a
/// causal mask is not subtracted). Beyond it: aten::_scaled_dot_product_flash_attention_for_cpu and its backward,
/// matrix–vector products, aten::dot, and oneDNN's and MKL's fused linear and convolution operators. Element-wise
/// work counts nothing.
/// Ref: torch.utils.flop_counter.flop_registry
FlopFormula flop_formula(std::string_view op);

/// Adds or replaces a formula, for operators of your own.
/// Threads: any; counters that are already running may keep the old one
void register_flop_formula(std::string op, FlopFormula formula);

}  // namespace bellows::inspect
