#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/checkpoint/sharded.h"
#include "bellows/comm/group.h"
#include "bellows/data/dataset.h"
#include "bellows/models/blocks.h"
#include "bellows/train/job.h"
#include "bellows/train/run/run_record.h"

namespace bellows::train {

class DividedModel;
class PipelineRanks;
struct OutputRank;

/// Connects a training loop with the other ranks of its job. The ranks divide the data, exchange gradients, and shard
/// the optimizer state according to the recipe's `data_parallel`. With a mesh axis `tensor`, the ranks of this axis read
/// the same samples and divide the layers of the model. With an axis `pipeline`, they divide the model into stages. With
/// an axis `context`, they divide the sequences. If there is only one process, this class does nothing.
/// Threads: not thread-safe; all calls except simple getters are collective
class Ranks {
 public:
  /// Reduces the job's training and held-out data to this rank's share, copies rank 0's model to all ranks, and
  /// replaces optimizers with sharded optimizers. It also seeds the generators of this rank.
  /// Throws: c10::ValueError if recipes, data, models or optimizers differ between ranks, or the recipe does not
  ///         support several ranks
  explicit Ranks(Job& job);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Returns the ranks, or null if there is only this process.
  const comm::Group* group() const;
  int rank() const { return group() ? group()->rank() : 0; }
  int size() const { return group() ? group()->size() : 1; }
  /// Returns the group of ranks that read different samples, which includes this rank. Returns null if this rank reads
  /// all samples.
  const comm::Group* data_group() const;
  int data_rank() const { return data_group() ? data_group()->rank() : 0; }
  int data_size() const { return data_group() ? data_group()->size() : 1; }
  /// Returns the fingerprints of the job's data, which the ranks have already compared. Returns null if there is only
  /// this process.
  const DataPrints* data_prints() const;

  /// Call this function before the forward pass of a batch.
  /// Params: last – whether this is the last batch of the step. After its backward pass, gradients are means over the
  ///                ranks
  ///         all_have_samples – the result of all_have_samples() for the batch
  void before_forward(bool last, bool all_have_samples);
  /// Call this function between forward and backward.
  /// Params: loss – the tensor from which backward starts
  void before_backward(const at::Tensor& loss);
  /// Call this function after backward.
  void after_backward();
  /// Whether this rank holds only a part of each layer or of the model (tensor and pipeline parallelism).
  bool divides_model() const;
  /// Whether ranks divide the sequences of the model (context parallelism).
  bool divides_sequences() const;
  /// Returns a function for models::run_blocks_by() that divides sequences and calls the blocks by `run`. Without
  /// context parallelism, it is `run`.
  models::RunBlock divided_blocks(models::RunBlock run) const;
  /// Returns the stages of this rank. They compute batches instead of the model. Null without pipeline parallelism.
  PipelineRanks* pipeline() const;
  /// Returns the number of ranks with different mean losses for a batch. The ranks of pipelines already have the mean of
  /// all pipelines.
  int losses() const { return pipeline() ? 1 : data_size(); }
  /// With pipeline parallelism, whether any rank passes true. Otherwise, returns `own`.
  bool any_stage(bool own) const;
  /// Returns a guard that must exist during forward and backward; null without tensor parallelism.
  std::shared_ptr<void> forward_scope() const;
  /// Returns the model whose outputs are complete, for evaluation.
  Model evaluated_model() const;
  /// Returns the rank that has the outputs of evaluated_model(); empty if each rank has its own outputs.
  std::optional<OutputRank> output_rank() const;
  /// Returns the ranks whose weights differ from those of rank 0. Gradients are the same on all ranks, but the weights
  /// drift apart if a rank runs other machine code, because its compiler failed or its processor is of another kind.
  std::vector<int> ranks_with_other_weights() const;
  /// Copies rank 0's running statistics to all ranks. Call this function before the ranks evaluate their shares.
  void before_evaluation();
  /// Returns a loss of 0 for a batch without samples. Its backward pass reaches every parameter, so that the other
  /// ranks do not wait for gradients of this rank.
  /// Throws: c10::ValueError if batch norm is synchronized, because the other ranks would wait for this rank's
  ///         statistics
  at::Tensor loss_of_nothing() const;
  /// Whether all ranks have the same number of samples in this batch. The result is the same on all ranks.
  bool has_equal_share(const data::Batch& batch, int64_t batch_size) const;
  /// Whether each rank certainly has a sample in this batch. The result is the same on all ranks.
  bool all_have_samples(const data::Batch& batch, int64_t batch_size) const;

  /// Returns whether each rank stores only a part of the optimizer state (zero1, zero2, zero3, tensor and
  /// pipeline parallelism).
  bool shards_state() const;
  /// Returns the state of an optimizer that this rank holds, in the form that a rank with the same shards can load.
  static NamedTensors own_state(const torch::optim::Optimizer& optimizer);
  static void load_own_state(torch::optim::Optimizer& optimizer, const NamedTensors& state);
  /// Loads the complete state of an optimizer, such as one that a single process saved.
  void load_complete_state(torch::optim::Optimizer& optimizer, const NamedTensors& state) const;
  /// Loads complete values of the model's tensors.
  void load_complete_model(const NamedTensors& values) const;
  /// Call this function after the generators were restored from a checkpoint, which may have had other ranks. Ranks that
  /// read the same samples get the same state. Ranks that read different samples get different ones.
  void align_generators(int64_t step) const;
  /// Gives the job its own optimizers back, without state, so that it can be divided among other ranks. Calls no other
  /// rank. Afterwards, only destroy this object.
  void unshard(Job& job);

  /// Returns whether each rank stores only a part of the parameters (zero3).
  bool shards_parameters() const;
  /// Functions of ShardedOptimizer for the parameters of all optimizers. If shards_parameters() is false,
  /// with_full_parameters() only calls `body`, and the other functions do nothing.
  void gather_parameters() const;
  void release_parameters() const;
  void with_full_parameters(const std::function<void()>& body) const;
  /// Restores the complete parameters of the model. They stay complete after this object is destroyed. Call this function
  /// after the last step.
  void complete_parameters() const;

  /// Returns the part of an optimizer's state that this rank holds.
  checkpoint::Parts parts_of(const torch::optim::Optimizer& optimizer) const;
  /// Returns a view of the model in which each sharded parameter is the tensor of ShardedOptimizer::local_parameters().
  /// With pipeline parallelism, it has the tensors of this rank only. Otherwise, it is the model. Do not call its
  /// forward().
  Model local_model() const;
  /// Describes tensors with the names and shapes of local_model().state_dict(). The results are views of these tensors.
  checkpoint::Parts parts_of(const NamedTensors& local) const;
  /// Converts tensors with the names and shapes of the model's state_dict() to those of local_model().
  NamedTensors local_parts(const NamedTensors& complete) const;

  /// Returns the state of the gradient exchange. The state is the same on all ranks, and is empty if there is only one
  /// process. Restore it before the first step.
  NamedTensors state() const;
  void restore(const NamedTensors& state);

  /// Describes the strategy, such as "zero1: 4 ranks, 5 buckets, …". The description is empty if there is only one
  /// process.
  std::string describe() const;

 private:
  DividedModel* divided() const;
  checkpoint::Parts shards_of(const NamedTensors& local) const;
  std::optional<comm::Group> gradient_ranks() const;
  void divide_work(Job& job);
  void exchange_gradients(Job& job);
  void shard_optimizers(Job& job, int stage);

  struct State;
  std::unique_ptr<State> state_;
  Model model_;
};

}  // namespace bellows::train
