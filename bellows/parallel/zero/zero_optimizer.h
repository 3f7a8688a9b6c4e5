#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/shard.h"
#include "bellows/core/model.h"
#include "bellows/core/named_state.h"
#include "bellows/core/scaled_step.h"

namespace bellows::parallel {

/// Params: stage – 1: each rank keeps a part of the optimizer's state (ZeRO-1); 2: and of the gradients (ZeRO-2)
///         bucket_bytes – parameters that travel together; smaller ones overlap more with backward, larger ones cost fewer
///         messages
struct ShardOptions {
  int stage = 2;
  int64_t bucket_bytes = 25 << 20;
};

/// A tensor of a saved state.
struct SavedTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides = {};  ///< empty: row-major
};

/// An optimizer of which each rank of a group updates its share of the elements and has the state for these alone; the
/// updated parameters are gathered at the end of step(). shard_optimizer() makes it.
///
/// A loop is what it is without: zero_grad(), backward(), clip_grad_norm_(), GradScaler, step(), schedules, averaged
/// weights. `param_groups()` holds the options, which step() heeds; `optim::state_dict()` and `optim::load_state_dict()`
/// speak of the whole state, as if one process had it.
///
/// Stage 1: the gradients have to be the same on all ranks, from DistributedDataParallel or by any other means; they stay
/// whole in `parameter.grad()`. The groups hold the parameters.
/// Stage 2: without DistributedDataParallel. Every backward() ends with the mean over the ranks, of which this one keeps its
/// part: `parameter.grad()` is undefined behind it, the groups hold 1-D parts in the parameters' places, and step() lets go
/// of their gradients. Over several backward() the parts add up: one may accumulate with no more memory, and no no_sync().
/// Each rank calls backward() equally often. A model whose backward() calls collectives (SyncBatchNorm) may have parameters
/// that only some ranks use if these are among the last two buckets; stage 1 knows no such limit. A parameter that had no gradient on any rank is left alone by step(), one that
/// had it on some counts as zero on the others.
/// State of 8 and 4 bits (`state_dtype`): parameters are cut between blocks that share a scale, so every rank codes what one
/// process would. Codes and scales are saved and loaded with the same bits on any number of ranks.
/// Numerics: a step gives what one process gives that has the mean of the ranks' gradients, for optimizers that treat each
///           element by itself: float64 to 1e-9 over 20 steps (tests/parallel/zero_parity_test.cpp); low-bit state bit for
///           bit from the same gradients (tests/parallel/zero_low_bit_test.cpp)
/// Cost:     of n bytes of parameters, W ranks: state n/W times the optimizer's (AdamW: 2). Gradients n, in stage 2 n/W,
///           up to four buckets on their way and one that fills. A step sends (W - 1)/W · n, each backward() of stage 2 as
///           much again
/// Threads:  one thread at a time; backward() of stage 2 calls collectives of a group of its own
/// Ref:      arXiv:1910.02054; torch.distributed.optim.ZeroRedundancyOptimizer
class ShardedOptimizer final : public torch::optim::Optimizer, public ScaledStep, public NamedState {
 public:
  struct Impl;
  explicit ShardedOptimizer(std::unique_ptr<Impl> impl);
  ~ShardedOptimizer() override;

  /// Collective. Throws: c10::ValueError – a sparse gradient, one of a parameter that was frozen when it was sharded (stage
  /// 2), and as the optimizer; c10::Error – an earlier backward() or step() ended with an error
  at::Tensor step(LossClosure closure = nullptr) override;

  bool takes_grad_scale() const override;
  void set_grad_scale(at::Tensor grad_scale, at::Tensor found_inf) override;

  /// The whole state, on the CPU. Collective. Numerics: exact
  NamedTensors state_dict() const override;
  /// Takes this rank's share. Throws: c10::ValueError – as optim::load_state_dict()
  void load_state_dict(const NamedTensors& state) override;

  /// What this rank has of the state, by state_dict()'s names, for a sharded checkpoint. Tensors share storage with the
  /// optimizer, numbers are copies; these, and what belongs to parameters that are not sharded, stand on several ranks.
  /// Throws: c10::ValueError – an optimizer of a class of your own: its state cannot be taken apart
  std::vector<comm::Shard> state_shards() const;
  /// What this rank needs of a saved state, not filled yet, whatever the number of ranks that saved it.
  /// Throws: c10::ValueError on every rank – state of parameters that are not there, of other sizes; low-bit state of
  ///         another block size or memory layout, or for a parameter that keeps none, and the reverse
  std::vector<comm::Shard> wanted_shards(const std::vector<SavedTensor>& saved) const;
  /// Takes what wanted_shards() gave, filled.
  void load_shards(const std::vector<comm::Shard>& filled);

  /// The optimizer of this rank's share.
  torch::optim::Optimizer& local() const;
  int stage() const;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void take_gradients();
  void drop_gradients();
  void gather();
  void copy_options_to_groups();

  std::unique_ptr<Impl> impl_;
};

/// Shares `optimizer` among the ranks of `group`. Parameters and buffers of the model become those of rank 0, the
/// parameters views of larger buffers: move and cast the model before. State that the optimizer has already is shared, too;
/// those of its parameters that are frozen stay whole. Use the result in the optimizer's place. Collective.
/// Params: optimizer – one that treats each element by itself: all of bellows::optim, also with master weights and low-bit
///                     state, and torch::optim but for LBFGS; not one that takes norms or means of whole parameters (LARS,
///                     LAMB, Adafactor), nor stochastic_rounding
///         model – that its parameters are of; it may have others
/// Throws: c10::ValueError – ranks with different parameters (named), parameters of another model or amp::MasterWeights,
///         LBFGS, Adafactor, lr_tensor, stochastic_rounding, low-bit state of a parameter that is not row-major, options out
///         of range
std::shared_ptr<ShardedOptimizer> shard_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                                  const Model& model, const comm::Group& group,
                                                  const ShardOptions& options = {});

}  // namespace bellows::parallel
