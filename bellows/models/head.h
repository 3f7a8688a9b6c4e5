#pragma once

#include <functional>

#include "bellows/core/model.h"

namespace bellows::models {

/// What is made of a language model's last hidden states [N, T, width]: scores = linear(hidden, weight, bias), or something else in
/// its place. The bias may be undefined.
using Head = std::function<at::Tensor(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias)>;

/// model.forward(input) that ends with `head` in the place of the model's last linear layer: where a loss that never holds all
/// scores takes hold of a model. Whoever wraps the model (precision, recomputation) does what it does.
/// ```
/// const at::Tensor loss = forward_into(gpt, ids, [&](const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) {
///   return nn::linear_cross_entropy(hidden, weight, bias, targets);
/// });
/// ```
/// Returns: what `head` gave; undefined where the model does not say what its head is: nothing has run then
/// Threads: any; other threads' forward passes of the same model are what they were
at::Tensor forward_into(const Model& model, const at::Tensor& input, const Head& head);

}  // namespace bellows::models
