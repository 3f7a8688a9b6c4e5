#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>

namespace bellows::kernels {

/// The form of a quantized weight matrix [columns, inner]. A weight is scale · (integer − zero point).
struct WeightFormat {
  int bits = 8;  ///< 8 or 4
  bool is_signed = true;
  bool has_zero_points = false;  ///< if false, all zero points are 0
  int64_t columns = 0, inner = 0;
  /// Adjacent integers of a row with the same scale and zero point. It divides `inner`; equal to `inner`: one per row.
  int64_t group_size = 0;
};

/// A quantized weight in row-major order.
struct QuantizedWeight {
  WeightFormat format;
  /// 8 bits: [columns, inner]. 4 bits: [columns, ceil(inner / 2)] bytes, each with two integers, the low half first, as
  /// in quant/packed.h.
  const void* values = nullptr;
  const float* scales = nullptr;         ///< [columns, inner / group_size]
  const int32_t* zero_points = nullptr;  ///< like `scales`; null if there are none
};

/// Arguments of weight_only_linear(): y = x · weightᵀ + bias.
struct WeightOnlyLinear {
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of x and y: Float or BFloat16
  int64_t rows = 0;
  const void* x = nullptr;  ///< [rows, inner]; elements of a row are adjacent
  int64_t x_row = 0;        ///< distance between two rows of x, in elements
  WeightFormat format;
  const void* packed = nullptr;  ///< from pack_weight()
  const float* bias = nullptr;   ///< [columns]; null if there is none
  void* y = nullptr;             ///< [rows, columns]; must not overlap other arguments
  int64_t y_row = 0;             ///< distance between two rows of y, in elements
  void* scratch = nullptr;       ///< weight_only_linear_scratch_bytes(), aligned like float
};

/// Returns the size of a packed weight in bytes. It is at most 1.02 times as large as the arguments of pack_weight() if
/// `inner` is at least 512, `columns` is a multiple of 16, and `group_size` is a multiple of 8. In general, columns are
/// padded to a multiple of 16, and the groups of 4-bit integers to a multiple of 8. Each 16 columns are padded to an odd
/// number of cache lines.
/// Throws: c10::ValueError if the format is invalid
size_t packed_weight_bytes(const WeightFormat& format);
/// Throws: c10::ValueError if the format is invalid
size_t weight_only_linear_scratch_bytes(c10::ScalarType dtype, const WeightFormat& format, int64_t rows);

/// Copies a weight into the order in which weight_only_linear() reads it (cpu/weight_only_layout.h). Packed weights are the
/// same for all instruction sets.
/// Params:  to – packed_weight_bytes(), 64-byte aligned
/// Cost:    reads the weight once, and writes packed_weight_bytes()
/// Threads: thread-safe; uses several threads as described in parallel.h if the weight is large
/// Throws:  c10::ValueError if the format is invalid, a pointer is missing or unaligned, or a zero point is outside of
///          [−32,000, 32,000]
void pack_weight(const QuantizedWeight& weight, void* to);

/// The inverse of pack_weight(): writes the integers in row-major order, as in QuantizedWeight::values.
/// Params: packed – from pack_weight()
///         to     – 8 bits: [columns, inner]; 4 bits: [columns, ceil(inner / 2)]
/// Throws: c10::ValueError if the format is invalid
void unpack_weight(const void* packed, const WeightFormat& format, void* to);

/// Multiplies by a weight of integers, which it converts in registers. Meant for up to 8 rows, as when a language model
/// generates text: the time is then mainly that of reading the weight. Any other number of rows is also correct.
/// Numerics: products and sums are fp32, with fused multiply-add where the processor has it. Each element is the sum over
///           parts of at most 256 integers of a group. Each part is summed in order, then multiplied by its scale. The
///           bias is added last. BFloat16 is rounded once, at the end. A row's result is bit-identical for any number of
///           threads and of rows, but depends on the instruction set. NaN and infinity in x reach all results of the row
/// Cost:     reads the packed weight once for every 64 rows, x once for every 64 columns (from the cache), and writes y
///           once. Above 16 rows, it converts parts of the weight to fp32 in the L2 cache
/// Threads:  thread-safe; uses several threads as described in parallel.h if there are at least 200,000 products
/// Throws:   c10::ValueError if the format or the dtype is invalid, or a pointer is missing
void weight_only_linear(const WeightOnlyLinear& args);

/// Reference implementation in plain C++, which reads the weight in its original form. It computes sums in double.
namespace ref {
/// Params: args – `packed`, `format` and `scratch` are ignored
void weight_only_linear(const QuantizedWeight& weight, const WeightOnlyLinear& args);
}  // namespace ref

}  // namespace bellows::kernels
