#pragma once

#include "bellows/core/model.h"
#include "bellows/quant/float8.h"
#include "bellows/quant/formats/linear.h"

/// The tensors of a linear layer in files of compressed-tensors (llm-compressor, vLLM, Transformers):
///
/// - pack-quantized: `weight_packed`, int32 [out, ceil(in · bits / 32)]; `weight_shape`, int64 [2];
///   `weight_zero_point`, int32 [ceil(out · bits / 32), groups].
/// - int-quantized and naive-quantized: `weight`, int8 [out, in]; `weight_zero_point`, int8 [out, groups].
/// - float-quantized: `weight`, fp8 [out, in].
/// - All formats: `weight_scale`, floating-point [out, groups].
/// - Integers: `weight_g_idx`, int32 [in], the group of each input.
///
/// Symmetric schemes have no zero points. One scale for the whole weight has the shape [1]. The group index is present only
/// if the inputs have an order.
///
/// Integers are signed. Packed integers are shifted by 2^(bits − 1), and words contain neighbors in a row, beginning with
/// the lowest bits. Packed zero points are neighbors in a column.
///
/// For all functions:
/// Params:  scheme – bits, whether symmetric, and granularity tensor, channel (axis 0) or group
/// Throws:  c10::ValueError if the format cannot store the layer, if a tensor is missing, or has another dtype or shape, or
///          if the group index is invalid
/// Threads: thread-safe
/// Ref:     compressed_tensors.compressors
namespace bellows::quant {

/// Packed integers of 2, 4 or 8 bits. Versions of compressed-tensors disagree about other numbers of bits.
/// Params: scale_dtype – the dtype of the scales; other projects expect that of the model
NamedTensors to_pack_quantized(const QuantizedLinear& layer, at::ScalarType scale_dtype = at::kFloat);
QuantizedLinear from_pack_quantized(const NamedTensors& tensors, const Scheme& scheme);

/// Integers of up to 8 bits, each in one byte.
NamedTensors to_int_quantized(const QuantizedLinear& layer, at::ScalarType scale_dtype = at::kFloat);
QuantizedLinear from_int_quantized(const NamedTensors& tensors, const Scheme& scheme);

/// 8-bit floating-point values.
NamedTensors to_float_quantized(const Float8Tensor& weight, at::ScalarType scale_dtype = at::kFloat);
/// Params: granularity – tensor, channel (axis 0) or group
Float8Tensor from_float_quantized(const NamedTensors& tensors, const Scheme& granularity);

}  // namespace bellows::quant
