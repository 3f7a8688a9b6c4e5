#pragma once

#include <functional>

#include "bellows/core/model.h"

namespace bellows::models {

/// A function that replaces the output layer of a language model. It receives the last hidden states [N, T, width] and
/// the weight and bias of the output layer. The bias may be undefined. The default function is linear(hidden, weight,
/// bias).
using Head = std::function<at::Tensor(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias)>;

/// Calls model.forward(input), with `head` instead of the model's last linear layer. Use it for losses that do not
/// materialize all logits. Wrappers of the model (precision, activation checkpointing) work as usual.
/// ```
/// const auto loss_of = [&](const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) {
///   return nn::linear_cross_entropy(hidden, weight, bias, targets);
/// };
/// const at::Tensor loss = forward_with_head(gpt, ids, loss_of);
/// ```
/// Returns: the result of `head`. If the model does not define its head, nothing runs and an undefined tensor is
///          returned
/// Threads: may be called on any thread; forward passes of the same model on other threads are not affected
at::Tensor forward_with_head(const Model& model, const at::Tensor& input, const Head& head);

}  // namespace bellows::models
