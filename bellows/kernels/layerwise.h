#pragma once

#include <cstdint>
#include <span>

#include "bellows/kernels/optimizer_step.h"

namespace bellows::kernels {

/// Parameters of one LAMB step for one tensor (arXiv:1904.00962).
struct LambRule {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  double grad_factor = 1;                   ///< multiplies each gradient when it is read
  double new1 = 1;                          ///< weight of the gradient in the first moment
  double correction1 = 1, correction2 = 1;  ///< divisors of the moments
  bool decoupled = true;                    ///< weight decay is added to the update and not to the gradient
  bool adapts = true;  ///< multiply lr by the norm of the parameter, divided by the norm of the update
};

/// Parameters of one NovoGrad step for one tensor (arXiv:1905.11286).
struct NovogradRule {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  double grad_factor = 1;                   ///< multiplies each gradient when it is read
  double new1 = 1;                          ///< weight of the gradient in the first moment
  double correction1 = 1, correction2 = 1;  ///< divisors of the first moment and of the norm
  bool first = false;                       ///< there is no norm of earlier steps
  bool inside_moment = false;               ///< the first moment averages normalized gradients with weight decay
  bool max_norm = false;                    ///< use the largest absolute value instead of the 2-norm
};

/// Arguments for one step of one tensor whose update depends on norms over the whole tensor. All arrays are dense and
/// in the same order. Arithmetic and state are f64 if the parameter and the gradient are f64, and f32 otherwise.
template <class Rule>
struct LayerwiseTensor {
  int64_t size = 0;
  Type param_type = Type::f32, grad_type = Type::f32;
  void* param = nullptr;
  const void* grad = nullptr;
  void* first = nullptr;   ///< first moment
  void* second = nullptr;  ///< LAMB: second moment. NovoGrad: one number, the averaged norm of the gradients
  Rule rule{};
};

/// Runs one step for each tensor.
/// Numerics: results agree with those of the reference implementation to 2e-5 in f32 and to 1e-12 in f64. Parameters in
///           bf16 agree to 1e-2 (tests/kernels/layerwise_test.cpp)
/// Cost:     LAMB reads the gradient once, and parameter and state twice. NovoGrad reads the gradient twice, and
///           parameter and state once. Each array is written once; two parallel regions per call
/// Threads:  uses libtorch's intra-op threads; bit-identical for any number of threads
void layerwise_step(std::span<const LayerwiseTensor<LambRule>> tensors);
void layerwise_step(std::span<const LayerwiseTensor<NovogradRule>> tensors);

namespace ref {
/// Reference implementation in plain C++. It computes one element at a time, with sums in f64.
void layerwise_step(std::span<const LayerwiseTensor<LambRule>> tensors);
void layerwise_step(std::span<const LayerwiseTensor<NovogradRule>> tensors);
}  // namespace ref

}  // namespace bellows::kernels
