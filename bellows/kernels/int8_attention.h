#pragma once

#include <cstdint>

#include "bellows/kernels/attention.h"

namespace bellows::kernels {

/// Arguments of attention whose two matmuls multiply 8-bit integers: softmax(scale · query · keyᵀ) · value for each matrix of
/// the batch. `rows` are queries, and `columns` are keys. Elements of a row are adjacent in all matrices.
struct Int8Attention {
  int64_t batch = 0, rows = 0, columns = 0;
  int64_t width = 0, value_width = 0;
  Matrices<const float> query{};                          ///< rows × width
  Matrices<const float> key{};                            ///< columns × width
  Matrices<const float> value{};                          ///< columns × value_width
  float query_scale = 1, key_scale = 1, value_scale = 1;  ///< of the integers that represent the operands
  float scale = 1;                                        ///< of the logits
  Matrices<float> result{};                               ///< rows × value_width
};

/// Numerics: query, key and value become clamp(round(x · (1 / their scale)), −128, 127), and NaN becomes −128. Sums of
///           integers are exact. Softmax is fp32: the powers e^(logit − largest logit of the row) are in (0, 1] and become
///           round(255 · power). A result is the sum of power · value, divided by the sum of the row's integer powers.
///           The error of e^x is at most 4e-6. Results are bit-identical for any number of threads
/// Cost:     reads each operand once and writes the result once. Each thread keeps a buffer of one key, one value, and 14 rows
///           of logits
/// Threads:  thread-safe; uses the threads of parallel_chunks()
/// Speed:    fast where has_fast_int8_linear() (kernels/int8_linear.h)
void int8_attention(const Int8Attention& args);

/// Reference implementation in plain C++. It computes in double, one value at a time.
namespace ref {
void int8_attention(const Int8Attention& args);
}  // namespace ref

}  // namespace bellows::kernels
