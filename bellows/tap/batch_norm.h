#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace bellows::tap {

/// One call of at::batch_norm in training. What is not there is undefined.
struct BatchNormCall {
  at::Tensor input;                      ///< [N, C, …]
  at::Tensor weight, bias;               ///< [C]
  at::Tensor running_mean, running_var;  ///< [C], updated in place
  double momentum = 0.1, eps = 1e-5;
};
using BatchNormFunction = std::function<at::Tensor(const BatchNormCall& call)>;

/// From now on at::batch_norm in training is computed by `function` wherever `key` is its running mean, or its weight where
/// there is no running mean; null ends that. It is called above autograd, and brings its own gradient. Everything else is
/// computed as before, in evaluation too.
/// Params:  key – told apart by identity, which Module::to() keeps and Module::clone() does not
/// Cost:    a look-up a call in training, once there was a first replacement
/// Threads: safe
/// Throws:  c10::ValueError – an undefined key
void replace_batch_norm(const at::Tensor& key, BatchNormFunction function);

}  // namespace bellows::tap
