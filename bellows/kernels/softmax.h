#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows::kernels {

/// Rows of logits of type float, double, BFloat16 or Half. A call covers the classes [first, first + columns). All
/// other floating-point arrays have the accumulation type: double for double, otherwise float.
struct SoftmaxRows {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t rows = 0, columns = 0;
  int64_t stride = 0;  ///< values from one row to the next
  int64_t first = 0;   ///< class of the first column
  const void* logits = nullptr;
  const int64_t* target = nullptr;  ///< [rows], the class of each row; an index that is not a class means no target
};

/// Arguments of softmax_statistics(): the statistics of each row for cross-entropy. Call it for one range of classes
/// after another. `max` starts at −∞, the others at 0. After the last range, log(sum of e^x) is max + log(sum).
struct SoftmaxStatistics {
  SoftmaxRows scores;
  void* max = nullptr;     ///< [rows], largest logit so far
  void* sum = nullptr;     ///< [rows], sum of e^(x − max)
  void* picked = nullptr;  ///< [rows], logit of the target
  void* total = nullptr;   ///< [rows], sum of the logits; null if not needed
};

/// Arguments of softmax_gradient(): gradient = (e^(x − log_sum) − off − (on at the target)) · scale, and 0 where the
/// scale is 0.
struct SoftmaxGradient {
  SoftmaxRows scores;
  const void* log_sum = nullptr;  ///< [rows]
  const void* scale = nullptr;    ///< [rows]
  double on = 1, off = 0;
  void* gradient = nullptr;  ///< shape, type and stride of the logits; may be the logits themselves
};

/// Numerics: two passes over the columns of each row, with four independent partial sums; e^x to a unit in the last
///           place. NaN propagates. Bit-identical for any number of threads. Compared with ref:: in
///           tests/nn/cross_entropy_test.cpp.
/// Cost:     statistics read the logits twice, the second time from the cache; the gradient reads and writes them once
/// Threads:  runs on libtorch's intra-op threads; safe to call from several threads
void softmax_statistics(const SoftmaxStatistics& args);
void softmax_gradient(const SoftmaxGradient& args);

/// Reference implementation in plain C++: computes in double, one value at a time.
namespace ref {
void softmax_statistics(const SoftmaxStatistics& args);
void softmax_gradient(const SoftmaxGradient& args);
}  // namespace ref

}  // namespace bellows::kernels
