#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bellows::kernels {

/// One operation on the result of int8_linear(), in fp32.
struct Int8Step {
  enum class Kind : uint8_t { relu, gelu, gelu_tanh, tanh, sigmoid, silu, add } kind = Kind::relu;
  const float* added = nullptr;  ///< [rows, columns]; only for `add`
};

/// The type of the values that int8_linear() writes.
enum class Int8Result : uint8_t { fp32, int8, uint8 };

/// Arguments of int8_linear(): y = steps((x − zero point) · weightᵀ · scales + bias), quantized if y is an integer.
struct Int8Linear {
  int64_t rows = 0, inner = 0, columns = 0;
  const void* x = nullptr;  ///< int8 or uint8 [rows, inner], dense
  bool x_is_signed = false;
  const float* x_scale = nullptr;         ///< one number
  const int32_t* x_zero_point = nullptr;  ///< one number; null: 0
  const void* packed = nullptr;           ///< from pack_int8_weight()
  const float* weight_scales = nullptr;   ///< [columns]
  const float* bias = nullptr;            ///< [columns]; null: none
  std::vector<Int8Step> steps{};
  Int8Result result = Int8Result::fp32;
  const float* y_scale = nullptr;         ///< one number; only if y is an integer
  const int32_t* y_zero_point = nullptr;  ///< one number; null: 0
  void* y = nullptr;                      ///< [rows, columns], dense; must not overlap other arguments
  void* scratch = nullptr;                ///< int8_linear_scratch_bytes()
};

/// Returns whether int8_linear() uses AVX-512 with VNNI. With AVX2 alone, it is at most twice as fast as fp32.
bool has_fast_int8_linear();

/// Returns the size of a packed weight in bytes: columns are padded to a multiple of 32, and inputs to a multiple of 4.
/// Each column also has the sum of its integers.
size_t packed_int8_weight_bytes(int64_t columns, int64_t inner);
/// Copies a weight into the order in which int8_linear() reads it. Packed weights are the same for all processors.
/// Params:  weight – [columns, inner], dense
///          to     – packed_int8_weight_bytes(), 64-byte aligned
/// Cost:    reads the weight once, and writes packed_int8_weight_bytes()
/// Threads: thread-safe; uses several threads as described in parallel.h if the weight is large
void pack_int8_weight(const int8_t* weight, int64_t columns, int64_t inner, void* to);

/// Returns the bytes for a copy of x, which is made if x is signed or `inner` is not a multiple of 4.
size_t int8_linear_scratch_bytes(int64_t rows, int64_t inner, bool x_is_signed);
/// Multiplies integers, and applies scales, bias, steps and quantization to the sums while they are in the cache.
/// Numerics: sums of integers are exact up to 2^31. The rest is fp32 with one rounding per operation, in the order
///           sum · (x_scale · weight_scale) + bias, then the steps. This is the order of quant::quantized_linear(), so
///           results without activations are bit-identical to it. Integers are clamp(round(value · (1 / y_scale)) + zero
///           point), with ties to even; NaN becomes the smallest integer. The error of erf is at most 3e-7. ReLU keeps NaN.
///           Results are bit-identical for any number of threads and rows
/// Cost:     reads the packed weight from memory once, x once for every 32 columns (from the cache), and each added operand
///           once, and writes y once
/// Threads:  thread-safe; uses several threads as described in parallel.h if there are at least 1,000,000 products
void int8_linear(const Int8Linear& args);

/// Reference implementation in plain C++, which reads the weight in its original form. It computes in double after the sum.
namespace ref {
/// Params: weight – [columns, inner], dense
///         args   – `packed` and `scratch` are ignored
void int8_linear(const int8_t* weight, const Int8Linear& args);
}  // namespace ref

}  // namespace bellows::kernels
