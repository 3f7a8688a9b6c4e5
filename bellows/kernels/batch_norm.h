#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>

namespace bellows::kernels {

/// Arguments of batch_norm_forward(), which normalizes each channel of `rows` contiguous rows of `channels` values, such
/// as the pixels of a channels-last image:
///   y = (x − mean) · invstd · weight + bias, with invstd = 1 / sqrt(variance + eps); with `relu`: y = max(y, 0)
///
/// x and y have the type `dtype`: float or BFloat16. Other arrays are [channels].
struct BatchNormForward {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t rows = 0, channels = 0;  ///< at least 1
  double eps = 1e-5;
  bool relu = false;
  const void* x = nullptr;
  const float* weight = nullptr;  ///< if null, all weights are 1
  const float* bias = nullptr;    ///< if null, all biases are 0
  void* y = nullptr;
  float* mean = nullptr;      ///< output
  float* variance = nullptr;  ///< output; of the rows, without Bessel's correction
  float* invstd = nullptr;    ///< output
  void* scratch = nullptr;    ///< batch_norm_scratch_bytes(), aligned to 64 bytes
};

/// Arguments of batch_norm_backward(). `mean` and `invstd` are outputs of the forward pass.
struct BatchNormBackward {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t rows = 0, channels = 0;  ///< at least 1
  bool relu = false;
  const void* dy = nullptr;
  const void* x = nullptr;
  const float* weight = nullptr;  ///< if null, all weights are 1
  const float* bias = nullptr;    ///< read only with `relu`; if null, all biases are 0
  const float* mean = nullptr;
  const float* invstd = nullptr;
  void* dx = nullptr;        ///< shape and type of x
  float* dweight = nullptr;  ///< null if it is not needed
  float* dbias = nullptr;    ///< null if it is not needed
  void* scratch = nullptr;   ///< batch_norm_scratch_bytes(), aligned to 64 bytes
};

size_t batch_norm_scratch_bytes(int64_t rows, int64_t channels);

/// Numerics: sums of 64 rows are fp32 and are added to sums in double, so that precision does not depend on the size of an
///           image. Variances are sums of squared distances from a sample of each channel, so that a large mean does not
///           reduce precision. Backward computes the sign of y again, with the rounding of forward, and passes gradients
///           where y is positive or NaN. Results are bit-identical for any number of threads; they depend on the
///           instruction set. tests/kernels/batch_norm_test.cpp compares them with the reference implementation
/// Cost:     forward reads x twice and writes y once. Backward reads x and dy twice and writes dx once
/// Threads:  thread-safe; uses the threads of parallel_chunks()
void batch_norm_forward(const BatchNormForward& args);
void batch_norm_backward(const BatchNormBackward& args);

/// Reference implementations in plain C++. They compute in double and need no scratch memory.
namespace ref {
void batch_norm_forward(const BatchNormForward& args);
void batch_norm_backward(const BatchNormBackward& args);
}  // namespace ref

}  // namespace bellows::kernels
