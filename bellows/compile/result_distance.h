#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <span>
#include <string>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::compile_detail {

/// Returns the results of a program as tensors, one for each of Program::outputs. The tensor of an output that is
/// written back covers the whole input. A tensor is undefined if the program released its buffer.
/// Params: inputs, outputs – the buffers of a run, with the inputs that the program has written
std::vector<at::Tensor> results_of(const graph::Program& program, std::span<const c10::Storage> inputs,
                                   std::span<const c10::Storage> outputs);

/// The distance between two tensors of equal sizes.
struct Distance {
  double largest = 0;    ///< the largest difference of two elements; infinite if only one of them is NaN
  int64_t elements = 0;  ///< number of elements that differ
  double scale = 0;      ///< the largest finite absolute value of the first tensor

  /// NaN equals NaN. The parts of a complex number are two elements.
  /// Throws: c10::Error if sizes or dtypes differ
  static Distance between(const at::Tensor& expected, const at::Tensor& got);
};

/// Runs a program with small errors. Each floating-point element of its inputs and of the results of its operators
/// changes by a random relative amount of at most `share`, or of one rounding if the dtype is less precise. The changes
/// are the same in each call. If `share` is 0, the program runs unchanged.
/// Params: inputs – copies that may be written
/// Returns: results as results_of()
std::vector<at::Tensor> run_with_errors(const graph::Program& program, std::vector<c10::Storage> inputs, double share);

}  // namespace bellows::compile_detail
