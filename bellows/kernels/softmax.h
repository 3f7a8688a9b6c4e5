#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace bellows::kernels {

/// Rows of scores, of which a kernel sees the classes [first, first + columns): float, double, BFloat16 or Half. All else is
/// of the accumulation type: double for double, otherwise float.
struct SoftmaxRows {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t rows = 0, columns = 0;
  int64_t stride = 0;  ///< values from one row to the next
  int64_t first = 0;   ///< class of the first column
  const void* logits = nullptr;
  const int64_t* target = nullptr;  ///< [rows], the class of each row; one that no row has counts as none
};

/// What cross-entropy needs to know of rows, class range by class range: `max` starts as −∞, the others as 0. Behind the
/// last range, log(sum of e^x) is max + log(sum).
struct SoftmaxStatistics {
  SoftmaxRows scores;
  void* max = nullptr;     ///< [rows], the largest so far
  void* sum = nullptr;     ///< [rows], of e^(x − max)
  void* picked = nullptr;  ///< [rows], x of the target
  void* total = nullptr;   ///< [rows], sum of x; null: not wanted
};

/// gradient = (e^(x − log_sum) − off − (on at the target)) · scale, and 0 where the scale is 0.
struct SoftmaxGradient {
  SoftmaxRows scores;
  const void* log_sum = nullptr;  ///< [rows]
  const void* scale = nullptr;    ///< [rows]
  double on = 1, off = 0;
  void* gradient = nullptr;  ///< as the logits, with their stride; may be the logits themselves
};

/// Numerics: each row in two passes over its columns, the sum in four chains; e^x to a unit in the last place. NaN stays NaN.
///           The same bits for every number of threads. Against ref:: in tests/nn/cross_entropy_test.cpp.
/// Cost:     statistics read the scores twice, the second time from the cache; the gradient reads and writes them once
/// Threads:  runs on libtorch's intra-op threads; safe to call from several threads
void softmax_statistics(const SoftmaxStatistics& args);
void softmax_gradient(const SoftmaxGradient& args);

/// The same in plain C++ and double, one value after the other: what the fast kernels are checked against.
namespace ref {
void softmax_statistics(const SoftmaxStatistics& args);
void softmax_gradient(const SoftmaxGradient& args);
}  // namespace ref

}  // namespace bellows::kernels
