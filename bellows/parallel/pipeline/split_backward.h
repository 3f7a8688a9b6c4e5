#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace bellows::parallel {

/// Backward of a stage in two parts: the gradient of the input first, so that the previous stage can continue, and the
/// gradients of the weights later.
///
/// The first part runs only the nodes of the graph that lead to the input. At nodes where a path to weights leaves
/// them, such as that of a linear layer, it keeps the gradient that arrives. The second part starts at these nodes and
/// computes only the gradients of the weights. Weights that the stage uses at several nodes get their gradients in the
/// first part.
///
/// Numerics: gradients equal those of one backward pass, except for rounding where an operator computes both gradients
///           together. Weight gradients add to grad(), as in backward()
/// Cost:     no computation runs twice, except operators between a weight and a node that several weights share. Saved
///           tensors and the gradients at the nodes stay in memory until weights() returns. Each node with weights
///           costs one call of autograd's engine, about 10 to 20 µs
/// Threads:  not thread-safe
/// Throws:   c10::ValueError if the output does not depend on the input
/// Ref:      arXiv:2401.10241; torch.distributed.pipelining, stage_backward_input and stage_backward_weight
class SplitBackward {
 public:
  /// Computes the gradient of `input`, which is then input.grad().
  /// Params: output – has a graph; gradient – of the output; input – a leaf that requires a gradient
  SplitBackward(const at::Tensor& output, const at::Tensor& gradient, const at::Tensor& input);
  ~SplitBackward();
  SplitBackward(SplitBackward&&) noexcept;
  SplitBackward& operator=(SplitBackward&&) noexcept;

  /// Computes the gradients of the weights, and frees the graph. Call it once.
  void weights();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::parallel
