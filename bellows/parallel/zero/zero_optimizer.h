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

/// Params: stage – 1: shards the optimizer's state (ZeRO-1); 2: shards the gradients, too (ZeRO-2)
///         bucket_bytes – size of the buckets of parameters; smaller ones overlap more with backward, larger ones need
///                        fewer messages
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

/// An optimizer that is sharded over the ranks of a group: each rank updates its share of the elements and holds the
/// state only for these. At the end of step(), the updated parameters are gathered. Created by zero_optimizer().
///
/// The training loop does not change: zero_grad(), backward(), clip_grad_norm_(), GradScaler, step(), schedules,
/// averaged weights. `param_groups()` has the options that step() uses. `optim::state_dict()` and
/// `optim::load_state_dict()` use the complete state, like a single process.
///
/// Stage 1: the gradients must be the same on all ranks, for example from DistributedDataParallel. They stay complete
/// in `parameter.grad()`. The groups contain the parameters.
///
/// Stage 2: use it without DistributedDataParallel. Every backward() ends with the mean over the ranks, of which this
/// rank keeps its shard. Afterwards, `parameter.grad()` is undefined, the groups contain 1-D shards instead of the
/// parameters, and step() frees their gradients. Shards accumulate over several backward(), so gradient accumulation
/// needs no more memory and no no_sync(). Each rank must call backward() equally often.
///
/// A parameter without a gradient on all ranks is not updated. If only some ranks have a gradient, it counts as zero on
/// the others. If backward() itself calls collectives (SyncBatchNorm), parameters that only some ranks use must be in
/// the last two buckets; stage 1 has no such limit.
///
/// Low-bit state (`state_dtype`): parameters are split between blocks that share a scale, so every rank quantizes as a
/// single process would. Codes and scales are saved and loaded bit-identically on any number of ranks.
/// Numerics: a step matches that of one process with the mean of the ranks' gradients, for elementwise optimizers:
///           float64 to 1e-9 over 20 steps (tests/parallel/zero_parity_test.cpp); low-bit state bit-identical for the
///           same gradients (tests/parallel/zero_low_bit_test.cpp)
/// Cost:     for n bytes of parameters and W ranks: state n/W times the optimizer's (AdamW: 2). Gradients n; in stage 2
///           n/W plus up to four buckets in flight and one that is being filled. A step sends (W - 1)/W · n, in stage 2
///           each backward() the same again
/// Threads:  one thread at a time; backward() of stage 2 calls collectives on its own group
/// Ref:      arXiv:1910.02054; torch.distributed.optim.ZeroRedundancyOptimizer
class ShardedOptimizer final : public torch::optim::Optimizer, public ScaledStep, public NamedState {
 public:
  struct Impl;
  explicit ShardedOptimizer(std::unique_ptr<Impl> impl);
  ~ShardedOptimizer() override;

  /// Collective. Throws: c10::ValueError if a gradient is sparse or belongs to a parameter that was frozen at the time
  /// of sharding (stage 2), and like the optimizer. c10::Error if an earlier backward() or step() ended with an error
  at::Tensor step(LossClosure closure = nullptr) override;

  bool takes_grad_scale() const override;
  void set_grad_scale(at::Tensor grad_scale, at::Tensor found_inf) override;

  /// The complete state, on the CPU. Collective. Numerics: exact
  NamedTensors state_dict() const override;
  /// Loads this rank's share. Throws: like optim::load_state_dict()
  void load_state_dict(const NamedTensors& state) override;

  /// This rank's part of the state, with state_dict()'s names, for a sharded checkpoint. Tensors share storage with the
  /// optimizer; numbers are copies. Numbers, and state of parameters that are not sharded, occur on several ranks.
  /// Throws: c10::ValueError if the optimizer is a user-defined class, whose state cannot be split
  std::vector<comm::Shard> state_shards() const;
  /// The parts of a saved state that this rank needs, not yet filled. The number of ranks that saved it may differ.
  /// Throws: c10::ValueError on every rank if the state belongs to missing parameters or has other sizes; or if low-bit
  ///         state has another block size or memory layout, or low-bit and full-precision state do not match
  std::vector<comm::Shard> wanted_shards(const std::vector<SavedTensor>& saved) const;
  /// Loads the parts from wanted_shards() after they were filled.
  void load_shards(const std::vector<comm::Shard>& filled);

  /// The underlying optimizer of this rank's share.
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

/// Shards `optimizer` over the ranks of `group`. Parameters and buffers of the model are set to rank 0's values.
/// Parameters become views of larger buffers, so move and cast the model before. Existing optimizer state is sharded,
/// too; state of frozen parameters stays complete. Use the result in place of the optimizer. Collective.
/// Params: optimizer – an elementwise optimizer: all of bellows::optim, also with master weights and low-bit state, and
///                     torch::optim except LBFGS. Not supported: optimizers that need norms or means of complete
///                     parameters (LARS, LAMB, Adafactor), and stochastic_rounding
///         model – the model that owns the parameters; it may have others
/// Throws: c10::ValueError if the ranks' parameters differ (the message names one), the parameters belong to another
///         model or to amp::MasterWeights, the optimizer is not supported (LBFGS, Adafactor, lr_tensor,
///         stochastic_rounding, low-bit state of a parameter that is not row-major), or options are out of range
std::shared_ptr<ShardedOptimizer> zero_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, const Model& model,
                                                 const comm::Group& group, const ShardOptions& options = {});

}  // namespace bellows::parallel
