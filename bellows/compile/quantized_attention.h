#pragma once

#include <cstdint>

#include "bellows/graph/program/program.h"

namespace bellows::compile_detail {

/// Replaces the operator bellows::quantized_attention (quant/operators.h) by the kernel of kernels/int8_attention.h, on
/// processors where it is fast.
/// Numerics: differs from the operator only if a power of softmax lies close to the middle between two integers
///           (tests/compile/quantized_test.cpp). Bit-identical for any number of threads
/// Returns:  the number of replaced operators
int64_t replace_quantized_attention(graph::Program& program);

}  // namespace bellows::compile_detail
