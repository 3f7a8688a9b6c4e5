#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

namespace bellows::optim {

/// Params: norm_type – 1, 2, any p above 0, or infinity (largest magnitude)
///         error_if_nonfinite – throw if the norm is infinite or NaN; only then does the host wait for the device
struct ClipOptions {
  double norm_type = 2;
  bool error_if_nonfinite = false;
};

/// The norm of all tensors as if they were one vector, as a 0-d tensor on the first tensor's device; 0 if there are
/// none.
/// Params:   tensors – undefined tensors are ignored; devices and floating-point dtypes can be mixed
/// Numerics: for dense CPU tensors and norms 1, 2 and infinity, sums are in double; the relative difference from
///           PyTorch is below 1e-6 in fp32 (tests/optim/clip_test.cpp). All other cases use PyTorch's operators.
/// Cost:     reads every tensor once
/// Throws:   c10::ValueError for a sparse or integer tensor, or if norm_type is out of range; c10::Error if the norm is
///           not finite and error_if_nonfinite is set
/// Ref:      torch.nn.utils.get_total_norm
at::Tensor get_total_norm(const std::vector<at::Tensor>& tensors, const ClipOptions& options = {});

// If gradients are sharded over the ranks of a job (core/sharded_gradients.h), all of these functions use the complete
// gradients. All ranks must then call them together, each with the same parameters. The exception is get_total_norm(),
// which takes gradients: it uses only the tensors that it gets.

/// Scales the gradients of `parameters` in place so that their norm is at most `max_norm`. Returns the norm before
/// scaling as a 0-d tensor. Parameters without a gradient are ignored. If the norm is infinite or NaN, all gradients
/// become NaN or 0, as in PyTorch.
/// Numerics: that of get_total_norm(), then one multiplication by min(1, max_norm / (norm + 1e-6))
/// Cost:     reads the gradients once. On the CPU, writes them only if the norm exceeds max_norm. Does not wait for the
///           device.
/// Throws:   c10::ValueError if max_norm is negative or NaN; otherwise as get_total_norm()
/// Ref:      torch.nn.utils.clip_grad_norm_
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const ClipOptions& options = {});

/// The second half of clip_grad_norm_(), for a norm that was computed elsewhere, for example over several processes.
/// Ref: torch.nn.utils.clip_grads_with_norm_
void clip_grads_with_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const at::Tensor& total_norm);

/// Clamps every element of the gradients to [-clip_value, clip_value] in place. NaN stays NaN.
/// Throws: c10::ValueError if clip_value is negative or NaN, or for a sparse gradient
/// Ref:    torch.nn.utils.clip_grad_value_
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

/// Params: grad_scale – 0-d: the factor by which the loss was multiplied before backward; undefined: 1. The norm is
///         that of the unscaled gradients.
///         skip_nonfinite – skip the step if the norm is infinite or NaN
struct ClipAndStepOptions {
  ClipOptions clip = {};
  at::Tensor grad_scale = {};
  bool skip_nonfinite = false;
};

/// Unscales and clips the gradients, then steps, with a single pass over the gradients before the step. Optimizers that
/// accept a scale (core/scaled_step.h: the fused ones) multiply gradients as they read them and leave them unchanged.
/// For other optimizers, the gradients are first unscaled and clipped. Returns the norm before clipping. A GradScaler
/// has its own bookkeeping: with it, call unscale_(), clip_grad_norm_() and its step().
/// Numerics: as the three separate calls, with up to two fewer roundings per gradient
/// Cost:     reads the gradients once, plus the cost of the step. Waits for the device only if skip_nonfinite is set
///           and the optimizer does not accept a scale.
/// Throws:   c10::ValueError under the same conditions as clip_grad_norm_()
at::Tensor clip_and_step(torch::optim::Optimizer& optimizer, double max_norm, const ClipAndStepOptions& options = {});

/// Frees the gradients of `parameters`, or sets them to zero and detaches them from their graph.
/// Params: set_to_none – true: frees the memory; the next backward pass then writes gradients instead of adding to them
/// Ref:    torch.optim.Optimizer.zero_grad
void zero_grad(const std::vector<at::Tensor>& parameters, bool set_to_none = true);

}  // namespace bellows::optim
