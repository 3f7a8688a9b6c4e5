#pragma once

#include "bellows/core/model.h"
#include "bellows/quant/formats/linear.h"

/// The tensors of a linear layer in files of GPTQ (AutoGPTQ, GPTQModel, Transformers):
///
/// | name | dtype | shape |
/// |---|---|---|
/// | qweight | int32 | [in · bits / 32, out] |
/// | qzeros | int32 | [groups, out · bits / 32] |
/// | scales | fp16 | [groups, out] |
/// | g_idx | int32 | [in]: the group of each input |
///
/// Integers are unsigned. Words contain the integers of neighboring inputs (qweight) or outputs (qzeros), beginning with
/// the lowest bits. Version 1 (`checkpoint_format` "gptq") stores zero points minus 1, modulo 2^bits. Version 2 ("gptq_v2")
/// stores them unchanged. A layer with one scale per output channel has one group.
///
/// For all functions:
/// Threads: thread-safe
/// Ref:     QuantLinear.pack() of AutoGPTQ
namespace bellows::quant {

/// Params:   layer   – 2, 3, 4 or 8 bits; a scale per output channel (axis 0), per group, or for the whole weight. `in` and
///                     `out` times the bits must be multiples of 32
///           version – 1 or 2
/// Numerics: scales are rounded to fp16. Some kernels of other projects read a stored zero point of 2^bits − 1 in
///           version 1 as 2^bits instead of 0
/// Throws:   c10::ValueError if the format cannot store the layer
NamedTensors to_gptq(const QuantizedLinear& layer, int version = 1);

/// Params:  tensors – as above; g_idx may be missing, and other tensors are ignored
///          scheme  – bits, whether symmetric, and granularity channel (axis 0) or group
/// Returns: signed integers if the scheme is symmetric and all zero points are 2^(bits − 1); otherwise, unsigned integers
/// Throws:  c10::ValueError if a tensor is missing, or has another dtype or shape, or if g_idx is invalid
QuantizedLinear from_gptq(const NamedTensors& tensors, const Scheme& scheme, int version = 1);

}  // namespace bellows::quant
