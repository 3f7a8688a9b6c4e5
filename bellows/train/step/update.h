#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <vector>

#include "bellows/amp/grad_scaler.h"
#include "bellows/comm/collectives.h"
#include "bellows/train/job.h"

namespace bellows::train {

/// Makes the gradient of several batches, on one or many ranks, equal to that of one batch with all their samples (or
/// tokens), even if their sizes differ. Each loss is weighted by its count divided by a power of two, and the sum is
/// divided by the total count divided by the same power.
/// Numerics: float64 gradients match those of one large batch to 1e-12 (tests/train/accumulate_test.cpp). A single
///           batch is neither weighted nor divided
class GroupMean {
 public:
  /// Params: ranks – ranks in this step, whose gradients are averaged; null: this process only
  ///         share – approximate number of samples per rank in a step
  ///         stop – this rank requests a stop
  ///         at_once – gradients cannot be divided afterwards, because they are fp16 or already used. The step
  ///                   must have a single batch, whose count the ranks exchange before backward
  explicit GroupMean(const comm::Group* ranks = nullptr, int64_t share = 1, bool stop = false, bool at_once = false);

  /// Params: alone – the step has only this batch, and every rank has the same number of samples
  /// Returns: the tensor from which backward() starts
  at::Tensor weigh(const StepOutput& output, int64_t samples, bool alone);
  /// Call it after the last batch was weighted: starts the exchange of sums with the other ranks.
  void exchange();
  /// Whether a rank requested a stop. Waits for the device.
  bool stop();
  /// Number of samples of all ranks. Waits for the device.
  int64_t samples();
  /// The divisor of the gradients; undefined: none.
  at::Tensor divisor();
  /// The mean loss over all samples of the step, detached.
  at::Tensor loss();

 private:
  void receive();

  const comm::Group* ranks_;
  bool stop_, at_once_;
  int64_t samples_ = 0;
  at::Tensor sum_, total_, unit_, single_, stops_, all_samples_;
  std::optional<comm::Pending> pending_;
};

/// Updates the weights: divides and clips gradients, skips steps that are not finite, and runs all optimizers.
/// Threads: not thread-safe
class Update {
 public:
  using Optimizers = std::vector<std::shared_ptr<torch::optim::Optimizer>>;
  explicit Update(const Recipe& recipe);

  /// The tensor from which backward() starts: with fp16, the loss times the scale.
  at::Tensor scaled(const at::Tensor& loss);
  /// Params: divisor – of all gradients; undefined: none
  /// Cost:   a single fused optimizer without max_grad_value divides and clips the gradients during the update. With
  ///         `on_nan: skip` and several optimizers, or one that is not fused, the host waits for the device
  void step(const Optimizers& optimizers, const at::Tensor& divisor);

  /// Number of steps skipped by `on_nan: skip`; with fp16, including those whose scaled gradients overflowed. Waits for
  /// the device.
  int64_t skipped() const;
  /// The norm of the gradients before clipping, 0-d; undefined if it was not needed.
  const at::Tensor& grad_norm() const { return grad_norm_; }

  NamedTensors state() const;
  void restore(const NamedTensors& state);

 private:
  void count_skipped(const at::Tensor& bad);
  void step_unscaled(const Optimizers& optimizers, const at::Tensor& divisor);
  bool clips() const { return max_grad_norm_ > 0 || skip_; }
  double limit() const;

  amp::GradScaler scaler_;
  double max_grad_norm_, max_grad_value_;
  bool skip_;
  at::Tensor grad_norm_, skipped_;
};

}  // namespace bellows::train
