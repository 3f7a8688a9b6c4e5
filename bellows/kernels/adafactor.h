#pragma once

#include <cstdint>
#include <span>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels {

/// Adafactor's numbers for one step of one tensor (arXiv:1804.04235).
struct AdafactorRule {
  double lr = 0;                 ///< the step, relative to the parameter if scale_parameter
  bool scale_parameter = false;  ///< times the parameter's root mean square, at least eps2
  double beta1 = 0;              ///< 0: no first moment
  double beta2 = 0;              ///< of this step
  double eps1 = 0;               ///< added to squares of gradients
  double eps2 = 0;
  double clip_threshold = 1;  ///< an update whose root mean square is above is scaled down to it
  double weight_decay = 0;
  double grad_factor = 1;  ///< multiplies each gradient as it is read
};

/// One tensor's step. Arrays are row-major [batches, rows, columns]. Arithmetic and state are f32, or f64 with an f64
/// parameter and gradient. The second moment is either two factors or `square`.
struct AdafactorTensor {
  int64_t batches = 1, rows = 1, columns = 0;
  Type param_type = Type::f32, grad_type = Type::f32;
  void* param = nullptr;
  const void* grad = nullptr;
  void* row = nullptr;     ///< [batches, rows], means over columns
  void* column = nullptr;  ///< [batches, columns], means over rows
  void* square = nullptr;  ///< where it is given, there are no factors
  void* first = nullptr;   ///< with beta1
  AdafactorRule rule{};
};

/// One step of each tensor.
/// Numerics: as kernels/ref, to a few units in the last place of the sums' terms (tests/kernels/adafactor_test.cpp)
/// Cost:     reads the gradient three times and the parameter twice, writes the parameter once
/// Threads:  uses libtorch's intra-op threads; the same bits for any number of them
void adafactor_step(std::span<const AdafactorTensor> tensors);

namespace ref {
/// The same in plain C++, element after element, with sums in f64.
void adafactor_step(std::span<const AdafactorTensor> tensors);
}  // namespace ref

}  // namespace bellows::kernels
