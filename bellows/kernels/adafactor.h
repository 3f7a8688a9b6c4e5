#pragma once

#include <cstdint>
#include <span>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels {

/// Parameters of one Adafactor step for one tensor (arXiv:1804.04235).
struct AdafactorRule {
  double lr = 0;                 ///< step size; relative to the parameter if scale_parameter is true
  bool scale_parameter = false;  ///< multiply lr by the parameter's root mean square, or by eps2 if that is greater
  double beta1 = 0;              ///< 0 if there is no first moment
  double beta2 = 0;              ///< value for this step
  double eps1 = 0;               ///< added to squared gradients
  double eps2 = 0;
  double clip_threshold = 1;  ///< updates with a greater root mean square are scaled down to this value
  double weight_decay = 0;
  double grad_factor = 1;  ///< multiplies each gradient when it is read
};

/// Arguments for one step of one tensor. Arrays are row-major, with shape [batches, rows, columns]. Arithmetic and
/// state are f64 if the parameter and the gradient are f64, and f32 otherwise. The second moment is stored either in
/// the factors `row` and `column`, or in `square`.
struct AdafactorTensor {
  int64_t batches = 1, rows = 1, columns = 0;
  Type param_type = Type::f32, grad_type = Type::f32;
  void* param = nullptr;
  const void* grad = nullptr;
  void* row = nullptr;     ///< [batches, rows], means over columns
  void* column = nullptr;  ///< [batches, columns], means over rows
  void* square = nullptr;  ///< if it is not null, `row` and `column` are not used
  void* first = nullptr;   ///< first moment; only used if beta1 is not 0
  AdafactorRule rule{};
};

/// Runs one step for each tensor.
/// Numerics: results agree with those of the reference implementation to 2e-5 in f32 and to 1e-12 in f64. Parameters in
///           bf16 agree to 1e-2 (tests/kernels/adafactor_test.cpp)
/// Cost:     reads the gradient three times and the parameter twice, and writes the parameter once
/// Threads:  uses libtorch's intra-op threads; bit-identical for any number of threads
void adafactor_step(std::span<const AdafactorTensor> tensors);

namespace ref {
/// Reference implementation in plain C++. It computes one element at a time, with sums in f64.
void adafactor_step(std::span<const AdafactorTensor> tensors);
}  // namespace ref

}  // namespace bellows::kernels
