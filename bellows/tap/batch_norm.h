#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace bellows::tap {

/// The arguments of one at::batch_norm call in training mode. Tensors that were not passed are undefined.
struct BatchNormCall {
  at::Tensor input;                      ///< [N, C, …]
  at::Tensor weight, bias;               ///< [C]
  at::Tensor running_mean, running_var;  ///< [C], updated in place
  double momentum = 0.1, eps = 1e-5;
};
using BatchNormFunction = std::function<at::Tensor(const BatchNormCall& call)>;

/// Replaces at::batch_norm in training mode with `function` for all calls whose key is `key`. The key of a call is its
/// running mean, or its weight if there is no running mean. A null function ends the replacement. The function is
/// called above autograd and must provide the gradient itself. All other calls are unchanged, including all calls in
/// evaluation mode.
/// Params:  key – compared by identity. Module::to() preserves the identity, but Module::clone() does not
/// Cost:    one lookup per call in training mode, after the first replacement
/// Threads: thread-safe
/// Throws:  c10::ValueError if `key` is undefined
void replace_batch_norm(const at::Tensor& key, BatchNormFunction function);

}  // namespace bellows::tap
