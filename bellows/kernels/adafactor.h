#pragma once

#include <cstdint>
#include <span>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels {

/// Parameters of one Adafactor step of one tensor (arXiv:1804.04235).
struct AdafactorRule {
  double lr = 0;                 ///< step size; relative to the parameter if scale_parameter is true
  bool scale_parameter = false;  ///< multiplies lr by the parameter's root mean square, but at least by eps2
  double beta1 = 0;              ///< 0: no first moment
  double beta2 = 0;              ///< for this step
  double eps1 = 0;               ///< added to squared gradients
  double eps2 = 0;
  double clip_threshold = 1;  ///< updates with a larger root mean square are scaled down to this value
  double weight_decay = 0;
  double grad_factor = 1;  ///< multiplies each gradient when it is read
};

/// Arguments for one step of one tensor. Arrays are row-major [batches, rows, columns]. Arithmetic and state are f32,
/// or f64 if the parameter and the gradient are f64. The second moment is stored either as the factors `row` and
/// `column`, or as `square`.
struct AdafactorTensor {
  int64_t batches = 1, rows = 1, columns = 0;
  Type param_type = Type::f32, grad_type = Type::f32;
  void* param = nullptr;
  const void* grad = nullptr;
  void* row = nullptr;     ///< [batches, rows], means over columns
  void* column = nullptr;  ///< [batches, columns], means over rows
  void* square = nullptr;  ///< if given, `row` and `column` are not used
  void* first = nullptr;   ///< first moment; only with beta1
  AdafactorRule rule{};
};

/// Makes one step of each tensor.
/// Numerics: equals kernels/ref to a few units in the last place of the summands (tests/kernels/adafactor_test.cpp)
/// Cost:     reads the gradient three times and the parameter twice, writes the parameter once
/// Threads:  uses libtorch's intra-op threads; bit-identical for any number of them
void adafactor_step(std::span<const AdafactorTensor> tensors);

namespace ref {
/// Reference implementation in plain C++: one element at a time, with sums in f64.
void adafactor_step(std::span<const AdafactorTensor> tensors);
}  // namespace ref

}  // namespace bellows::kernels
