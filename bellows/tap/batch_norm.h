#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace bellows::tap {

/// The arguments of one at::batch_norm call in training. Missing tensors are undefined.
struct BatchNormCall {
  at::Tensor input;                      ///< [N, C, …]
  at::Tensor weight, bias;               ///< [C]
  at::Tensor running_mean, running_var;  ///< [C], updated in place
  double momentum = 0.1, eps = 1e-5;
};
using BatchNormFunction = std::function<at::Tensor(const BatchNormCall& call)>;

/// Computes at::batch_norm in training by `function` wherever `key` is the running mean, or the weight if there is no
/// running mean. A null function ends the replacement. The function is called above autograd and must provide its own
/// gradient. All other calls, including all calls in evaluation, are unchanged.
/// Params:  key – compared by identity. Module::to() preserves the identity, Module::clone() does not.
/// Cost:    one look-up per call in training, once any replacement has been made
/// Threads: safe
/// Throws:  c10::ValueError if `key` is undefined
void replace_batch_norm(const at::Tensor& key, BatchNormFunction function);

}  // namespace bellows::tap
