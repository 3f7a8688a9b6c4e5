#pragma once

#include <memory>

#include "bellows/checkpoint/sharded.h"
#include "bellows/comm/group.h"
#include "bellows/data/dataset.h"
#include "bellows/train/job.h"
#include "bellows/train/run/run_record.h"

namespace bellows::train {

/// What a training loop does because it is not alone: the ranks of a job share its data, exchange gradients, and hold the
/// optimizer's state between them as the recipe's `data_parallel` says. Alone it does nothing.
/// Threads: one owner; collective are all calls but the plain reads
class Ranks {
 public:
  /// Takes this rank's share of the job's training and held-out data, gives all ranks rank 0's model, and puts sharded
  /// optimizers in the places of the job's. Generators go on from a seed of this rank.
  /// Throws: c10::ValueError – ranks with different recipes, models or optimizers, a recipe that many ranks cannot follow
  explicit Ranks(Job& job);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Null: this process alone.
  const comm::Group* group() const;
  int rank() const { return group() ? group()->rank() : 0; }
  int size() const { return group() ? group()->size() : 1; }
  /// Of the job's data, as the ranks compared them. Null: this process alone.
  const DataPrints* data_prints() const;

  /// Before the forward pass of a batch. Params: last – of the step: behind its backward pass gradients are the ranks' mean
  void before_forward(bool last);
  /// Between forward and backward. Params: loss – what backward starts from
  void before_backward(const at::Tensor& loss);
  /// After backward.
  void after_backward();
  /// Before each rank evaluates its share: all have rank 0's running statistics.
  void before_evaluation();
  /// The loss of a batch without samples, 0: backward from it reaches every parameter, so that no rank waits for this one.
  /// Throws: c10::ValueError – batch norm is synchronized, for which the others would wait
  at::Tensor loss_of_nothing() const;
  /// A batch is as large as those of the other ranks, whose step ends with `consumed` samples of the epoch: the same answer
  /// on all of them.
  bool has_equal_share(const data::Batch& batch, int64_t batch_size) const;

  /// An optimizer's state as this rank holds it.
  static checkpoint::Parts parts_of(const torch::optim::Optimizer& optimizer);

  /// What the gradients' exchange carries from step to step, the same on all ranks; nothing alone. Restored before the first
  /// step.
  NamedTensors state() const;
  void restore(const NamedTensors& state);

  /// "zero1: 4 ranks, 5 buckets, …"; "" alone.
  std::string describe() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::train
