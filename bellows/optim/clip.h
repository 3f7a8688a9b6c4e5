#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

namespace bellows::optim {

/// Params: norm_type – 1, 2, any p above 0, or infinity (the largest magnitude)
///         error_if_nonfinite – true: throw if the norm is infinite or NaN. For this check, the host waits for the
///         device
struct ClipOptions {
  double norm_type = 2;
  bool error_if_nonfinite = false;
};

/// Returns the norm of all tensors as if they were one vector, as a 0-d tensor on the first tensor's device. Without
/// tensors, the norm is 0.
/// Params:   tensors – undefined tensors are ignored; devices and floating-point dtypes can be mixed
/// Numerics: for dense CPU tensors and the norms 1, 2 and infinity, sums are in double. The relative difference from
///           PyTorch is below 1e-6 in fp32 (tests/optim/clip_test.cpp). All other cases use PyTorch's operators.
/// Cost:     reads every tensor once
/// Throws:   c10::ValueError for a sparse or integer tensor, or if norm_type is out of range; c10::Error if the norm is
///           not finite and error_if_nonfinite is set
/// Ref:      torch.nn.utils.get_total_norm
at::Tensor get_total_norm(const std::vector<at::Tensor>& tensors, const ClipOptions& options = {});

// If gradients are sharded over the ranks of a job (core/sharded_gradients.h), the functions in this header use the
// complete gradients. All ranks must then call a function together, with the same parameters. The exception is
// get_total_norm(), which uses only the tensors that are passed to it.

/// Scales the gradients of `parameters` in place so that their norm is at most `max_norm`. Returns the norm before
/// scaling as a 0-d tensor. Parameters without a gradient are ignored. If the norm is infinite or NaN, all gradients
/// become NaN or 0, as in PyTorch.
/// Numerics: as in get_total_norm(), then one multiplication by min(1, max_norm / (norm + 1e-6))
/// Cost:     reads the gradients once. On the CPU, it writes them only if the norm exceeds max_norm. It does not wait
///           for the device.
/// Throws:   c10::ValueError if max_norm is negative or NaN, and under the same conditions as get_total_norm()
/// Ref:      torch.nn.utils.clip_grad_norm_
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const ClipOptions& options = {});

/// Scales gradients like clip_grad_norm_(), but with a norm that was computed elsewhere, for example over several
/// processes.
/// Ref: torch.nn.utils.clip_grads_with_norm_
void clip_grads_with_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const at::Tensor& total_norm);

/// Clamps each element of the gradients to [-clip_value, clip_value] in place. NaN elements do not change.
/// Throws: c10::ValueError if clip_value is negative or NaN, or for a sparse gradient
/// Ref:    torch.nn.utils.clip_grad_value_
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

/// Params: grad_scale – 0-d tensor with the factor by which the loss was multiplied before backward; undefined: 1.
///         max_norm applies to the unscaled gradients
///         skip_nonfinite – true: skip the step if the norm is infinite or NaN
struct ClipAndStepOptions {
  ClipOptions clip = {};
  at::Tensor grad_scale = {};
  bool skip_nonfinite = false;
};

/// Unscales and clips the gradients, and then runs the optimizer's step. It needs only one pass over the gradients
/// before the step. Fused optimizers accept a scale (core/scaled_step.h). They scale the gradients when they read them,
/// and leave the gradients in memory unchanged. For other optimizers, the gradients are unscaled and clipped before the
/// step. Returns the norm before clipping. Do not use this function with a GradScaler, which has its own bookkeeping.
/// Instead, call unscale_(), clip_grad_norm_() and the scaler's step().
/// Numerics: like unscaling, clipping and stepping separately, but with up to two fewer roundings per gradient
/// Cost:     reads the gradients once, in addition to the step. It waits for the device only if skip_nonfinite is set
///           and the optimizer does not accept a scale.
/// Throws:   c10::ValueError under the same conditions as clip_grad_norm_()
at::Tensor clip_and_step(torch::optim::Optimizer& optimizer, double max_norm, const ClipAndStepOptions& options = {});

/// Frees the gradients of `parameters`, or sets them to zero and detaches them from their graph.
/// Params: set_to_none – true: frees the memory. The next backward pass then writes gradients instead of adding to them
/// Ref:    torch.optim.Optimizer.zero_grad
void zero_grad(const std::vector<at::Tensor>& parameters, bool set_to_none = true);

}  // namespace bellows::optim
