#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows::kernels {

/// Rows of logits of type float, double, BFloat16 or Half. A call covers the classes [first, first + columns). All
/// other floating-point arrays have the accumulation type, which is double if `dtype` is double, else float.
struct SoftmaxRows {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t rows = 0, columns = 0;
  int64_t stride = 0;  ///< values from one row to the next
  int64_t first = 0;   ///< class of the first column
  const void* logits = nullptr;
  const int64_t* target = nullptr;  ///< [rows], class of each row; a row has no target if this is not a valid class
};

/// Arguments of softmax_statistics(), which computes the statistics of each row for cross-entropy. Call it for all
/// ranges of classes, one after another. Initialize `max` to −∞ and all other arrays to 0. After the last range,
/// log(sum of e^x) is max + log(sum).
struct SoftmaxStatistics {
  SoftmaxRows scores;
  void* max = nullptr;     ///< [rows], largest logit so far
  void* sum = nullptr;     ///< [rows], sum of e^(x − max)
  void* picked = nullptr;  ///< [rows], logit of the target
  void* total = nullptr;   ///< [rows], sum of the logits; null if not needed
};

/// Arguments of softmax_gradient(), which computes gradient = (e^(x − log_sum) − off − on) · scale. For all classes
/// except the target, `on` is replaced by 0. If the scale of a row is 0, the gradient is 0.
struct SoftmaxGradient {
  SoftmaxRows scores;
  const void* log_sum = nullptr;  ///< [rows]
  const void* scale = nullptr;    ///< [rows]
  double on = 1, off = 0;
  void* gradient = nullptr;  ///< shape, type and stride of the logits; may be the logits themselves
};

/// Numerics: each row is computed in two passes over its columns, with four independent partial sums. The error of e^x
///           is at most one unit in the last place. NaN propagates. Results are bit-identical for any number of
///           threads. tests/nn/cross_entropy_test.cpp compares the results with the reference implementation
/// Cost:     statistics read the logits twice, the second time from the cache. The gradient reads and writes them once
/// Threads:  thread-safe; uses libtorch's intra-op threads
void softmax_statistics(const SoftmaxStatistics& args);
void softmax_gradient(const SoftmaxGradient& args);

/// Reference implementations in plain C++. They compute in double, one value at a time.
namespace ref {
void softmax_statistics(const SoftmaxStatistics& args);
void softmax_gradient(const SoftmaxGradient& args);
}  // namespace ref

}  // namespace bellows::kernels
