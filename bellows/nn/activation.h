#pragma once

#include <ATen/core/Tensor.h>

/// Activations between linear layers that keep their inputs for backward, and compute what they gave once more there.
///
/// For all of them –
/// Numerics: against libtorch's operators one after the other: float64 to 1e-12, float32 to 1e-6 of the largest value; bf16 and
///           fp16 are computed in fp32 and rounded once (tests/nn/activation_test.cpp). The same bits for every number of
///           threads. Under autocast the products are of its dtype, as at::linear's.
/// Cost:     one pass over each tensor forward and one backward. A gradient of the gradient is composed of libtorch's
///           operators, and so is everything on other devices than the CPU, and CUDA with -DBELLOWS_CUDA=ON (both untested).
/// Threads:  safe from several threads
/// Throws:   c10::ValueError – shapes, dtypes or devices that do not fit
namespace bellows::nn {

struct GeluOptions {
  bool tanh = false;  ///< GPT-2's approximation of erf
};

/// linear(gelu(x), weight, bias): keeps x and the weight. at::gelu and at::linear keep gelu(x), too, as large as x.
/// Shapes:   x [*, K]; weight [M, K]; bias [M] or undefined → [*, M]
/// Cost:     backward takes memory for two tensors of x's size, as libtorch's two operators do for one, beside the one they kept
/// Ref:      torch.nn.functional.gelu, linear
at::Tensor gelu_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                       const GeluOptions& options = {});

/// gate · sigmoid(gate) · up: keeps both; at::silu and a product keep silu(gate), too.
/// Shapes:   gate, up of one shape → as they
/// Ref:      arXiv:2002.05202
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// linear(swiglu(gate, up), weight, bias): keeps gate, up and the weight; libtorch's operators four tensors of gate's size.
/// Shapes:   gate, up [*, K]; weight [M, K]; bias [M] or undefined → [*, M]
at::Tensor swiglu_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                         const at::Tensor& bias = {});

}  // namespace bellows::nn
