#pragma once

#include <ATen/core/Tensor.h>

/// Activations that are fused with the following linear layer. They save only their inputs and recompute the activation
/// in backward.
///
/// For all functions:
/// Numerics: compared with libtorch's separate operators, float64 agrees to 1e-12 and float32 to 1e-6 of the largest
///           value. bf16 and fp16 are computed in fp32 and rounded once (tests/nn/activation_test.cpp). Bit-identical
///           for any number of threads. Under autocast, matrix multiplications run in its dtype, as at::linear does.
/// Cost:     forward and backward each make one pass over each tensor. Double backward uses libtorch's operators. So
///           does everything on devices other than the CPU and, with -DBELLOWS_CUDA=ON, CUDA (both untested).
/// Threads:  safe from several threads
/// Throws:   c10::ValueError if shapes, dtypes or devices do not match
namespace bellows::nn {

struct GeluOptions {
  bool tanh = false;  ///< true: the tanh approximation, as in GPT-2
};

/// linear(gelu(x), weight, bias). Saves x and the weight. at::gelu and at::linear also save gelu(x), which is as large
/// as x.
/// Shapes: x [*, K]; weight [M, K]; bias [M] or undefined → [*, M]
/// Cost:   backward allocates two tensors of x's size; libtorch's two operators allocate one, in addition to the saved
///         gelu(x)
/// Ref:    torch.nn.functional.gelu, linear
at::Tensor gelu_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                       const GeluOptions& options = {});

/// gate · sigmoid(gate) · up. Saves gate and up. at::silu and a multiplication also save silu(gate).
/// Shapes: gate and up of equal shape → same shape
/// Ref:    arXiv:2002.05202
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// linear(swiglu(gate, up), weight, bias). Saves gate, up and the weight. libtorch's operators save four tensors of
/// gate's size.
/// Shapes: gate, up [*, K]; weight [M, K]; bias [M] or undefined → [*, M]
at::Tensor swiglu_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                         const at::Tensor& bias = {});

}  // namespace bellows::nn
