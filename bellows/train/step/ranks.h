#pragma once

#include <memory>

#include "bellows/checkpoint/sharded.h"
#include "bellows/comm/group.h"
#include "bellows/data/dataset.h"
#include "bellows/train/job.h"
#include "bellows/train/run/run_record.h"

namespace bellows::train {

/// Connects a training loop with the ranks of its job: they divide the data, exchange gradients, and shard the
/// optimizer state according to the recipe's `data_parallel`. With a single process, it does nothing.
/// Threads: not thread-safe; all calls except plain getters are collective
class Ranks {
 public:
  /// Reduces the job's training and held-out data to this rank's share, copies rank 0's model to all ranks, and
  /// replaces optimizers by sharded ones. Seeds the generators for this rank.
  /// Throws: c10::ValueError if recipes, models or optimizers differ between ranks, or the recipe does not support
  ///         several ranks
  explicit Ranks(Job& job);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Null: this process only.
  const comm::Group* group() const;
  int rank() const { return group() ? group()->rank() : 0; }
  int size() const { return group() ? group()->size() : 1; }
  /// Fingerprints of the job's data, which the ranks have compared. Null: this process only.
  const DataPrints* data_prints() const;

  /// Call it before the forward pass of a batch. Params: last – the last batch of the step, after whose backward pass
  /// gradients are the ranks' mean
  void before_forward(bool last);
  /// Call it between forward and backward. Params: loss – the tensor from which backward starts
  void before_backward(const at::Tensor& loss);
  /// Call it after backward.
  void after_backward();
  /// Call it before the ranks evaluate their shares: broadcasts rank 0's running statistics.
  void before_evaluation();
  /// The loss of a batch without samples: 0. Its backward pass reaches every parameter, so that no rank waits for this
  /// one.
  /// Throws: c10::ValueError if batch norm is synchronized, because the other ranks would wait for it
  at::Tensor loss_of_nothing() const;
  /// Whether all ranks have the same number of samples in this batch. The result is the same on all ranks.
  bool has_equal_share(const data::Batch& batch, int64_t batch_size) const;

  /// An optimizer's state as this rank holds it.
  static checkpoint::Parts parts_of(const torch::optim::Optimizer& optimizer);

  /// The state of the gradient exchange, which is the same on all ranks; empty with a single process. Restore it before
  /// the first step.
  NamedTensors state() const;
  void restore(const NamedTensors& state);

  /// "zero1: 4 ranks, 5 buckets, …"; "" with a single process.
  std::string describe() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::train
