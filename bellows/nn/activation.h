#pragma once

#include <ATen/core/Tensor.h>

/// Fused activations, alone or combined with the following linear layer. They save only their inputs for backward,
/// which recomputes the activation.
///
/// For all functions:
/// Numerics: results in float64 agree with those of libtorch's separate operators to 1e-12, and results in float32 to
///           1e-6 of the largest value. Inputs in bf16 and fp16 are computed in fp32 and rounded once
///           (tests/nn/activation_test.cpp). Results are bit-identical for any number of threads. Under autocast,
///           matrix multiplications run in autocast's dtype, like at::linear.
/// Cost:     forward and backward each make one pass over each tensor. Double backward uses libtorch's operators. CUDA
///           kernels require a build with -DBELLOWS_CUDA=ON (untested). All other devices use libtorch's operators
///           (untested).
/// Threads:  thread-safe
/// Throws:   c10::ValueError if shapes, dtypes or devices do not match
namespace bellows::nn {

struct GeluOptions {
  bool tanh = false;  ///< true: the tanh approximation, as in GPT-2
};

/// Computes linear(gelu(x), weight, bias). It saves x and the weight for backward. Separate operators also save
/// gelu(x), which is as large as x.
/// Shapes: x [*, K]; weight [M, K]; bias [M] or undefined → [*, M]
/// Cost:   backward allocates two tensors of x's size. Separate operators allocate one, in addition to the saved
///         gelu(x)
/// Ref:    torch.nn.functional.gelu, linear
at::Tensor gelu_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                       const GeluOptions& options = {});

/// Computes gate · sigmoid(gate) · up. It saves gate and up for backward. Separate operators also save silu(gate).
/// Shapes: gate and up of equal shape → same shape
/// Ref:    arXiv:2002.05202
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// Computes linear(swiglu(gate, up), weight, bias). It saves gate, up and the weight for backward. Separate operators
/// save four tensors of gate's size.
/// Shapes: gate, up [*, K]; weight [M, K]; bias [M] or undefined → [*, M]
at::Tensor swiglu_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                         const at::Tensor& bias = {});

}  // namespace bellows::nn
