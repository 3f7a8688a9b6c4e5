#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <vector>

#include "bellows/amp/grad_scaler.h"
#include "bellows/comm/collectives.h"
#include "bellows/train/job.h"

namespace bellows::train {

/// Makes the gradient of several batches, of one rank or many, that of one batch of all their samples (or tokens),
/// however ragged they are: each loss is weighed by its count over a power of two, and the sum divided by the total over
/// the same.
/// Numerics: float64 gradients equal one large batch's to 1e-12 (tests/train/accumulate_test.cpp). A single batch is
///           neither weighed nor divided
class GroupMean {
 public:
  /// Params: ranks – who take this step together, their gradients becoming the ranks' mean; null: this process alone
  ///         share – samples that a rank has in a step, about
  ///         stop – this rank wants to end
  ///         at_once – gradients cannot be divided afterwards, being fp16 or used already: of the one batch that there is,
  ///         all ranks tell each other their counts before backward
  explicit GroupMean(const comm::Group* ranks = nullptr, int64_t share = 1, bool stop = false, bool at_once = false);

  /// Params: alone – the group has this one batch, and every rank as many samples
  /// Returns: what backward() starts from
  at::Tensor weigh(const StepOutput& output, int64_t samples, bool alone);
  /// After the last batch was weighed: begins to exchange sums with the other ranks.
  void exchange();
  /// Some rank wants to end. Waits for the device.
  bool stop();
  /// Of all ranks. Waits for the device.
  int64_t samples();
  /// What the gradients have to be divided by; undefined: nothing.
  at::Tensor divisor();
  /// The mean over all samples of the group, detached.
  at::Tensor loss();

 private:
  void receive();

  const comm::Group* ranks_;
  bool stop_, at_once_;
  int64_t samples_ = 0;
  at::Tensor sum_, total_, unit_, single_, stops_, all_samples_;
  std::optional<comm::Pending> pending_;
};

/// From gradients to new weights: divides, clips, leaves out what is not finite, steps every optimizer.
/// Threads: one owner
class Update {
 public:
  using Optimizers = std::vector<std::shared_ptr<torch::optim::Optimizer>>;
  explicit Update(const Recipe& recipe);

  /// What backward() starts from: under fp16 the loss times the scale.
  at::Tensor scaled(const at::Tensor& loss);
  /// Params: divisor – of all gradients; undefined: none
  /// Cost:   with one fused optimizer and no clip_value the gradients are divided and clipped while it reads them. With
  ///         `on_nan: skip` and several optimizers, or one that is not fused, the host waits for the device
  void step(const Optimizers& optimizers, const at::Tensor& divisor);

  /// Steps left out by `on_nan: skip`; in fp16 also those whose scaled gradients overflowed. Waits for the device.
  int64_t skipped() const;
  /// The norm of the gradients before they were clipped, 0-d; undefined when it was not needed.
  const at::Tensor& grad_norm() const { return grad_norm_; }

  NamedTensors state() const;
  void restore(const NamedTensors& state);

 private:
  void count_skipped(const at::Tensor& bad);
  void step_unscaled(const Optimizers& optimizers, const at::Tensor& divisor);
  bool clips() const { return clip_norm_ > 0 || skip_; }
  double limit() const;

  amp::GradScaler scaler_;
  double clip_norm_, clip_value_;
  bool skip_;
  at::Tensor grad_norm_, skipped_;
};

}  // namespace bellows::train
