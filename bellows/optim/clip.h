#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

namespace bellows::optim {

/// Params:   norm_type – 1, 2, any p above 0, infinity (largest magnitude)
///           error_if_nonfinite – throw when the norm is infinite or NaN. The host waits for the device then, and only
///           then
struct ClipOptions {
  double norm_type = 2;
  bool error_if_nonfinite = false;
};

/// The norm of all tensors as if they were one vector, as a 0-d tensor on the first one's device; 0 for none.
/// Params:   tensors – undefined ones are passed over; devices and floating dtypes may be mixed
/// Numerics: dense CPU tensors, norms 1, 2 and infinity: sums in double, relative difference to PyTorch's below 1e-6 in
///           fp32 (tests/optim/clip_test.cpp); all else is PyTorch's own operators
/// Cost:     reads every tensor once
/// Throws:   c10::ValueError – a sparse or integer tensor, norm_type out of range; c10::Error – error_if_nonfinite
/// Ref:      torch.nn.utils.get_total_norm
at::Tensor get_total_norm(const std::vector<at::Tensor>& tensors, const ClipOptions& options = {});

// Gradients that lie scattered over the ranks of a job (core/sharded_gradients.h) count whole in all of these: the ranks call
// them together, each with the same parameters. get_total_norm(), which takes gradients, knows of its own tensors only.

/// Scales the gradients of `parameters` in place so that their norm is at most `max_norm`; returns the norm before, as
/// a 0-d tensor. Parameters without a gradient are passed over. A norm that is infinite or NaN makes all gradients NaN
/// or 0, as PyTorch's does.
/// Numerics: get_total_norm's, then one multiplication by min(1, max_norm / (norm + 1e-6))
/// Cost:     reads the gradients once, and writes them only where needed: on the CPU not at all when the norm is below
///           max_norm. No wait for a device
/// Throws:   c10::ValueError – max_norm negative or NaN; as get_total_norm()
/// Ref:      torch.nn.utils.clip_grad_norm_
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const ClipOptions& options = {});

/// The second half of clip_grad_norm_(), for a norm that was computed elsewhere (over several processes).
/// Ref:      torch.nn.utils.clip_grads_with_norm_
void clip_grads_with_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const at::Tensor& total_norm);

/// Clamps every element of the gradients to [-clip_value, clip_value], in place. NaN stays.
/// Throws:   c10::ValueError – clip_value negative or NaN, a sparse gradient
/// Ref:      torch.nn.utils.clip_grad_value_
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

/// Params:   grad_scale – 0-d, what the loss was multiplied by before backward; undefined: 1. The norm is that of the
///           true gradients
///           skip_nonfinite – the step changes nothing when the norm is infinite or NaN
struct ClipAndStepOptions {
  ClipOptions clip = {};
  at::Tensor grad_scale = {};
  bool skip_nonfinite = false;
};

/// Unscales, clips and steps: what clip_grad_norm_() and step() do, with one pass over the gradients between them and
/// no other. An optimizer that takes a scale (core/scaled_step.h: the fused ones) multiplies while it reads the
/// gradients, which stay as they are; for any other one they are unscaled and clipped first. Returns the norm before. A
/// GradScaler does its own bookkeeping: with it call unscale_(), clip_grad_norm_() and its step().
/// Numerics: as the three calls one after the other, with up to two roundings less a gradient
/// Cost:     reads the gradients once, and what the step costs. Waits for the device only if skip_nonfinite is set and
///           the optimizer takes no scale
/// Throws:   c10::ValueError – as clip_grad_norm_()
at::Tensor clip_and_step(torch::optim::Optimizer& optimizer, double max_norm, const ClipAndStepOptions& options = {});

/// Lets go of the gradients of `parameters`, or sets them to zero and cuts them from their graph.
/// Params:   set_to_none – true: frees the memory; the first backward pass then writes instead of adding
/// Ref:      torch.optim.Optimizer.zero_grad
void zero_grad(const std::vector<at::Tensor>& parameters, bool set_to_none = true);

}  // namespace bellows::optim
