#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <vector>

#include "bellows/amp/grad_scaler.h"
#include "bellows/comm/collectives.h"
#include "bellows/train/job.h"

namespace bellows::train {

/// Weights the losses of several batches, on one or more ranks, and returns a divisor for their summed gradients. The
/// sum divided by this divisor equals the gradient of one batch with all samples (or tokens), even if batch sizes
/// differ. A mean loss over n samples (or tokens) is multiplied by n/u, where u is a power of two. A loss that is a sum
/// is multiplied by 1/u. With several ranks, the weights are also multiplied by the number of ranks, because gradients
/// are averaged over the ranks. The gradients are later divided by N/u, where N is the total count (see divisor()).
/// Numerics: float64 gradients match those of one large batch to 1e-12 (tests/train/accumulate_test.cpp). If weigh()
///           leaves a loss unweighted, its gradients are not divided
class GroupMean {
 public:
  /// Params: ranks   – ranks in this step, whose gradients are averaged; null if there is only this process
  ///         share   – approximate number of samples per rank in a step
  ///         stop    – true if this rank requests a stop
  ///         at_once – true if gradients cannot be divided later, because they are in fp16, or because the optimizer
  ///                   consumes them during backward. The step must then have a single batch, and the ranks exchange
  ///                   their sample (or token) counts before backward. The factor u is then the total count N
  ///         copies  – number of ranks that read the same samples (tensor parallelism). Gradients are then averaged over
  ///                   ranks->size() / copies ranks
  explicit GroupMean(const comm::Group* ranks = nullptr, int64_t share = 1, bool stop = false, bool at_once = false,
                     int copies = 1);

  /// Weights the loss of a batch. If `alone` is true, a mean loss stays unweighted, unless StepOutput::count is defined
  /// and there are several ranks.
  /// Params: alone – whether this is the only batch of the step and every rank has the same number of samples
  /// Returns: the tensor from which backward() starts
  at::Tensor weigh(const StepOutput& output, int64_t samples, bool alone);
  /// Returns u. If it is not known yet, sets it. Call this function before weigh() if losses must be weighted earlier.
  /// Params: samples – approximate number of samples in a batch, at least 1
  at::Tensor unit_for(int64_t samples);
  /// Starts the exchange of sums with the other ranks. Call this function after the last weigh() of a step.
  void exchange();
  /// Requests that the ranks join another world after this step (comm::ElasticWorld). Call it before exchange().
  void request_rejoin() { rejoin_ = true; }
  /// Whether any rank requested a stop. Waits for the device.
  bool stop();
  /// Whether any rank called request_rejoin(). Waits for the device.
  bool rejoin();
  /// Returns the number of samples of all ranks. Waits for the device.
  int64_t samples();
  /// Returns the divisor of the gradients, or an undefined tensor if they must not be divided.
  at::Tensor divisor();
  /// Returns the mean loss over all samples of the step, detached.
  at::Tensor loss();

 private:
  void receive();

  const comm::Group* ranks_;
  const int copies_;
  bool stop_, at_once_, rejoin_ = false;
  int64_t samples_ = 0;
  at::Tensor sum_, total_, unit_, single_, stops_, rejoins_, all_samples_;
  std::optional<comm::Pending> pending_;
};

/// Returns the parameters in the groups of all optimizers.
std::vector<at::Tensor> parameters_of(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers);

/// Updates the weights: divides and clips the gradients, and runs all optimizers. With `on_nan: skip` or loss scaling,
/// it skips steps with non-finite gradients.
/// Threads: not thread-safe
class Update {
 public:
  using Optimizers = std::vector<std::shared_ptr<torch::optim::Optimizer>>;
  explicit Update(const Recipe& recipe);

  /// Returns the tensor from which backward() starts. With fp16, this is the loss multiplied by the loss scale.
  at::Tensor scaled(const at::Tensor& loss);
  /// Params: divisor – divisor of all gradients; undefined if they must not be divided
  /// Cost:   a single fused optimizer divides and clips the gradients during the update if max_grad_value is off. With
  ///         `on_nan: skip`, the host waits for the device if there are several optimizers, the optimizer is not fused,
  ///         or max_grad_value is on
  void step(const Optimizers& optimizers, const at::Tensor& divisor);

  /// Returns the number of steps that `on_nan: skip` skipped. With fp16, this includes steps whose scaled gradients
  /// overflowed. Waits for the device.
  int64_t skipped() const;
  /// Returns the norm of the gradients before clipping, 0-d. The tensor is undefined if no norm was computed.
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
