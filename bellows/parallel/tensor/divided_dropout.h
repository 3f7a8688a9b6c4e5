#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "bellows/comm/group.h"

namespace bellows::parallel {

/// The slice of a tensor that a rank holds, for random numbers.
struct RandomSlice {
  int64_t dim = 0, rank = 0, ranks = 1;  ///< with ranks = 1, the tensor is complete
};

/// Draws which elements dropout keeps, as ones and zeros, for a slice with `sizes` of a tensor. The mask is drawn for the
/// complete tensor, as one process draws it.
at::Tensor kept_elements(at::IntArrayRef sizes, const at::TensorOptions& options, double p, const RandomSlice& slice,
                         const std::optional<at::Generator>& generator);

/// Dropout of a slice of a tensor. The mask is drawn for the complete tensor, as one process draws it, and this rank's
/// slice is used. All ranks must have the same generator state.
/// Cost: draws the mask of the complete tensor, and allocates it temporarily
at::Tensor dropout_slice(const at::Tensor& x, double p, const RandomSlice& slice,
                         const std::optional<at::Generator>& generator);

/// Returns a text that differs if the states of two generators differ. Without a generator, it describes libtorch's
/// default generator of the CPU.
std::string generator_line(const std::optional<at::Generator>& generator);

/// Checks that the ranks draw the same masks. Collective.
/// Params: axis – such as "context", for the message
/// Throws: c10::ValueError on all ranks if the states of their generators differ
void check_same_generators(const std::optional<at::Generator>& generator, const comm::Group& group,
                           const std::string& axis);
/// Checks that no checkpointed function runs again if a generator is set. Activation checkpointing restores only
/// libtorch's default generators, so the function would draw other masks.
/// Params: where – start of the message; option – the option that sets the generator, such as "TensorOptions::generator"
/// Throws: c10::Error
void check_dropout_not_repeated(const std::optional<at::Generator>& generator, const char* where, const char* option);

/// Casts an input of attention as autocast does, if it is enabled.
at::Tensor cast_like_autocast(const at::Tensor& x);

/// Arguments of at::scaled_dot_product_attention.
struct AttentionCall {
  at::Tensor query, key, value, mask;
  double dropout = 0;
  bool causal = false, grouped = false;
  std::optional<double> scale;

  explicit AttentionCall(std::span<const c10::IValue> arguments);
};

/// Attention with dropout of some of the heads, [N, heads of this rank, T, d]. Dropout is that of dropout_slice().
/// Numerics: the operators of libtorch's math kernel, which libtorch also uses for dropout on the CPU
/// Cost:     memory for the weights of all queries and keys, like that kernel
at::Tensor attention_slice(const AttentionCall& call, const RandomSlice& slice,
                           const std::optional<at::Generator>& generator);

}  // namespace bellows::parallel
