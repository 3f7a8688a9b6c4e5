#pragma once

#include "bellows/core/model.h"
#include "bellows/quant/formats/linear.h"

/// The tensors of a linear layer in files of AWQ in the "gemm" layout (AutoAWQ, Transformers):
///
/// | name | dtype | shape |
/// |---|---|---|
/// | qweight | int32 | [in, out / 8] |
/// | qzeros | int32 | [groups, out / 8] |
/// | scales | fp16 | [groups, out] |
///
/// Integers are unsigned and have 4 bits. A word contains the integers of eight neighboring outputs, in the order 0, 2, 4,
/// 6, 1, 3, 5, 7, beginning with the lowest bits. A layer with one scale per output channel has one group.
///
/// For all functions:
/// Threads: thread-safe
/// Ref:     WQLinear_GEMM.from_linear() of AutoAWQ
namespace bellows::quant {

/// Params:   layer – 4 bits; a scale per output channel (axis 0), per group, or for the whole weight; no input order. The
///                   number of outputs must be a multiple of 8
/// Numerics: scales are rounded to fp16
/// Throws:   c10::ValueError if the format cannot store the layer
NamedTensors to_awq(const QuantizedLinear& layer);

/// Params:  tensors – as above; other tensors are ignored
///          scheme  – 4 bits, whether symmetric, and granularity channel (axis 0) or group
/// Returns: signed integers if the scheme is symmetric and all zero points are 8; otherwise, unsigned integers
/// Throws:  c10::ValueError if a tensor is missing, or has another dtype or shape
QuantizedLinear from_awq(const NamedTensors& tensors, const Scheme& scheme);

}  // namespace bellows::quant
