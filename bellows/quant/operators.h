#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "bellows/quant/affine.h"

/// The operators that quantized models run. They are registered in libtorch's dispatcher as `bellows::…`, so that compiled
/// functions record them and replace them with oneDNN primitives (compile/onednn/quantized_pass.cpp). The functions here are
/// their reference: exact integer sums, one rounding per result.
///
/// An 8-bit tensor represents (values − zero point) · scale. Scales are fp32, zero points int32.
///
/// For all functions:
/// Threads: thread-safe
/// Throws:  c10::ValueError if shapes or dtypes do not match
namespace bellows::quant {

/// Quantizes activations to 8 bits with known parameters.
/// Shapes:   input [*, n] → [*, n]; scale [], [n] or [*, 1]; zero_point []
/// Params:   is_signed – whether the result is int8 or uint8
/// Numerics: clamp(round(x · (1 / scale)) + zero_point), as in affine.h. NaN becomes the smallest integer
at::Tensor quantize_activations(const at::Tensor& input, const at::Tensor& scale, const at::Tensor& zero_point,
                                bool is_signed);

/// An 8-bit activation.
struct QuantizedInput {
  at::Tensor values{};      ///< int8 or uint8
  at::Tensor scale{};       ///< [], or one per row: [*, 1]
  at::Tensor zero_point{};  ///< []
};

/// Returns (values − zero_point) · scale as fp32, the inverse of quantize_activations().
/// Shapes: as for quantize_activations()
at::Tensor dequantize_activations(const QuantizedInput& input);

/// Returns int8 values with one scale per row of the last dim: the largest magnitude of the row / 127. For dynamic
/// quantization. It consists of operators that compiled functions fuse into one kernel.
/// Shapes: input [*, n] → values [*, n], scale [*, 1]
QuantizedInput quantize_rows(const at::Tensor& input, const at::Tensor& zero_point);

/// Returns input · weightᵀ + bias as fp32.
/// Shapes: input [*, n] with one scale, weight int8 [m, n], weight_scale [m], bias [m] or undefined → [*, m]
at::Tensor quantized_linear(const QuantizedInput& input, const at::Tensor& weight, const at::Tensor& weight_scale,
                            const at::Tensor& bias);

/// A weight of a linear in the order in which the kernel for weight-only linears reads it (kernels/weight_only_linear.h).
struct PackedWeight {
  at::Tensor data{};  ///< uint8; undefined if there is no packed weight
  int64_t bits = 8;   ///< 4 or 8
  bool is_signed = true, has_zero_points = false;
  int64_t outputs = 0, inputs = 0, group_size = 0;
};
/// Packs integers of 1 to 8 bits. All numbers of bits except 4 take 8 bits.
/// Params: weight – granularity channel (axis 0) or group, [m, n]
PackedWeight pack_weight(const QuantizedTensor& weight);
/// The inverse of pack_weight(): int8 or uint8, [m, n].
at::Tensor unpack_weight(const PackedWeight& weight);

/// Returns input · weightᵀ + bias in the dtype of the input. The weight is converted while it is read.
/// Shapes: input [*, n], fp32 or bf16; bias [m] or undefined → [*, m]
at::Tensor weight_only_linear(const at::Tensor& input, const PackedWeight& weight, const at::Tensor& bias);

/// The other arguments of a convolution, as in aten::convolution.
struct ConvolutionArguments {
  std::vector<int64_t> stride{}, padding{}, dilation{};
  int64_t groups = 1;
};

/// Returns the convolution as fp32. Padding is 0, not the zero point.
/// Shapes: input [N, C, …], weight int8 [O, C / groups, …], weight_scale [O], bias [O] or undefined → [N, O, …]
at::Tensor quantized_convolution(const QuantizedInput& input, const at::Tensor& weight, const at::Tensor& weight_scale,
                                 const at::Tensor& bias, const ConvolutionArguments& arguments);

/// fp32 operands of attention [batch, heads, rows or keys, width], and the scales [] of their signed integers.
struct AttentionOperands {
  at::Tensor query{}, key{}, value{};
  at::Tensor query_scale{}, key_scale{}, value_scale{};
};

/// Returns softmax(scale · query · keyᵀ) · value as fp32, with both matmuls on 8-bit integers.
/// Shapes:   → [batch, heads, rows, value width], in the memory order [batch, rows, heads, value width]
/// Params:   scale – of the logits; none: 1 / sqrt(width)
/// Numerics: the operands are quantized as by quantize_activations() with the zero point 0. Softmax is fp32. Its powers
///           e^(logit − largest logit of the row) are in (0, 1] and become round(255 · power). A result is the sum of
///           power · value, divided by the sum of the row's integer powers
at::Tensor quantized_attention(const AttentionOperands& operands, std::optional<double> scale);

}  // namespace bellows::quant
