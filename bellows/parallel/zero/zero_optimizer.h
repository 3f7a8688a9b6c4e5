#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/shard.h"
#include "bellows/core/backward_steps.h"
#include "bellows/core/model.h"
#include "bellows/core/named_state.h"
#include "bellows/core/scaled_step.h"

namespace bellows::parallel {

/// Where a rank stores data between two uses.
enum class Offload {
  none,  ///< on the device of the parameters
  host,  ///< in memory of the host, page-locked where the device copies from it. On the CPU, nothing changes
  file,  ///< in an unlinked temporary file; only the parts in use are in memory
};

struct ShardOptions {
  /// 1: shards the optimizer's state (ZeRO-1); 2: also the gradients (ZeRO-2); 3: also the parameters (ZeRO-3, FSDP2)
  int stage = 2;
  /// Size of the parameter buckets. Smaller buckets overlap more with backward; larger buckets need fewer messages. In
  /// stage 3, two buckets of complete parameters are in memory, so smaller buckets need less memory.
  int64_t bucket_bytes = 25 << 20;
  /// Patterns for names of modules, such as "layers.*". The parameters of each module that matches are one bucket of any
  /// size. `*` matches any text, `?` one character, and `[abc]` one of these characters; `\` before such a character
  /// matches the character itself. The other parameters are in buckets of `bucket_bytes`. A tied weight belongs to the
  /// module of its first name.
  std::vector<std::string> units = {};
  /// Stage 3: frees parameters in forward, and gathers them again in backward. If false, complete parameters stay in
  /// memory between forward and backward, and each step sends a third less.
  bool reshard_after_forward = true;
  /// Stage 3: the dtype in which floating-point parameters are gathered and used, such as at::kBFloat16; none: the dtype
  /// of the shards. The optimizer updates the shards, which keep their dtype.
  std::optional<at::ScalarType> parameter_dtype = {};
  /// Stages 2 and 3: the dtype in which gradients are sent and averaged; none: that of the gradients.
  std::optional<at::ScalarType> reduce_dtype = {};
  /// Stage 3: also shards the parameters that have no gradient, such as the base model of LoRA. If false, they are
  /// complete on every rank and need no exchange. If true, each of them is gathered once per step, even if the step has
  /// several batches, as far as `gathered_frozen_bytes` permits.
  bool shard_frozen = false;
  /// Stage 3 with `shard_frozen`: limit for the bytes of complete frozen parameters that stay in memory from their first
  /// use until step(). The buckets beyond the limit are freed and gathered again like trained parameters. -1: half of the
  /// memory that is available when the optimizer is sharded, on the rank that has the least. On the CPU, the ranks of
  /// `group` and `replicas` share this memory; set a limit if other ranks use the machine, too. If
  /// `reshard_after_forward` is false, there is no limit.
  int64_t gathered_frozen_bytes = -1;
  /// Stage 3: a safetensors file with all weights of the model. Each rank reads only its shards. Parameters of other
  /// optimizers, frozen parameters without `shard_frozen`, and buffers are read completely. On the CPU, no rank ever needs
  /// memory for the whole model if it was created with tap::SkipInitialization. Empty: the weights of rank 0.
  std::string weights_file = {};
  /// Hybrid sharding: a group of ranks that hold the same shards. The ranks in `group` shard a replica of the model, and
  /// gradients are also averaged over the replicas. With a mesh: `group` is mesh.group("shard"), and `replicas` is
  /// mesh.group("data"). In stage 1, DistributedDataParallel must average gradients over all of these ranks.
  std::optional<comm::Group> replicas = {};
  /// Stages 2 and 3, with `replicas`: the replicas also divide the optimizer state. Its memory then shrinks with the
  /// number of all ranks, while parameters are gathered only within `group`, for example within a machine.
  bool shard_state_over_replicas = false;
  /// The parameters and buffers get no values, and no rank sends its own. Load them before you use them, for example from
  /// a rank that has had the same shards.
  bool uninitialized = false;
  /// Stage 3: where the shards of the parameters are stored. On an accelerator, `host` and `file` also keep the shards of
  /// the gradients and the optimizer state on the host, and the host runs the optimizer step.
  Offload offload_parameters = Offload::none;
  /// Where the optimizer state is stored, and in stages 2 and 3 also the shards of the gradients. On an accelerator, this
  /// option needs `offload_parameters`.
  Offload offload_state = Offload::none;
  /// Folder of the temporary files; if empty, $TMPDIR or /tmp. Some systems keep /tmp in memory. Disk space for all data
  /// is reserved at the start.
  std::string offload_folder = {};
  /// For each kind of data: limit for the bytes that wait to be written. For optimizer state, it is also the limit for
  /// the bytes that are read ahead. For shards and gradients, one bucket is read ahead.
  int64_t offload_window_bytes = 64 << 20;
};

struct OffloadedBytes {
  int64_t file_bytes = 0, resident_bytes = 0;  ///< size of this rank's files; number of these bytes that are in memory
};

/// Describes a tensor of a saved state.
struct SavedTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides = {};  ///< row-major if empty
};

/// An optimizer that is sharded over the ranks of a group. Each rank updates its share of the elements and stores only
/// the state of this share. At the end of step(), the ranks gather the updated parameters. zero_optimizer() creates
/// such an optimizer.
///
/// The training loop does not change. zero_grad(), backward(), clip_grad_norm_(), GradScaler, step(), learning-rate
/// schedules and averaged weights work as with any optimizer. step() uses the options in `param_groups()`.
/// `optim::state_dict()` and `optim::load_state_dict()` save and load the complete state, as in a single process.
///
/// Stage 1: the gradients must be the same on all ranks, for example because DistributedDataParallel averages them. The
/// complete gradients stay in `parameter.grad()`. The parameter groups contain the parameters.
///
/// Stage 2: do not use DistributedDataParallel. Every backward() averages the gradients over the ranks, and each rank
/// stores its shard of the mean. In a Pipeline, step() does so once, after all micro-batches, and `group` and `replicas`
/// must be the ranks of its data and context axes. After backward(), `parameter.grad()` is undefined. The parameter groups contain 1-D
/// shards instead of the parameters. step() frees the gradients of the shards. Gradient accumulation needs no extra
/// memory, because only shards accumulate. With no_sync(), it needs memory for all gradients instead, but only the last
/// backward() communicates. All ranks must call backward() the same number of times.
///
/// Stage 3: like stage 2, but each rank also stores only its shard of the parameters. When an operator uses a parameter,
/// in forward or backward, the ranks gather its bucket. When an operator uses another bucket, the first one is freed, and
/// the next one is gathered in the background. This works with any model, because operators are observed, not modules.
/// The rules are:
/// - All ranks must use the parameters in the same order. Before code in which their order can differ, such as an
///   evaluation with different numbers of batches, call gather_parameters() on all ranks.
/// - Use the model on the thread that called zero_optimizer(), and keep the optimizer while you use the model.
/// - In-place operators on parameters throw, and so do accesses to data pointers of parameters that are not gathered.
///   Both work inside with_full_parameters().
///
/// A parameter that has no gradient on any rank is not updated. If only some ranks have a gradient, the gradient counts
/// as zero on the other ranks. If backward() itself calls collectives (SyncBatchNorm), parameters that only some ranks
/// use must be in the last two buckets, and each other parameter must be used in all steps or in none. Stage 1 does not
/// have these limits.
///
/// Offloading to a file (Offload::file): step() updates one bucket after another. Shards are read ahead of their use and
/// removed from memory after it. Scales of low-bit state, buckets in use and other model data stay in memory. Code that
/// reads all shards, such as clipping, averaging of weights or saving, maps them until their next use. The operating
/// system can remove mapped pages at any time.
///
/// Low-bit state (`state_dtype`): the elements that share a scale form a block, and parameters are split only at block
/// boundaries. Every rank therefore quantizes in the same way as a single process. Codes and scales are saved and
/// loaded bit-identically on any number of ranks.
/// Numerics: for elementwise optimizers, a step matches that of one process with the mean of the ranks' gradients. In
///           float64, it matches to 1e-9 over 20 steps (tests/parallel/zero/parity_test.cpp). Low-bit state is
///           bit-identical for the same gradients (tests/parallel/zero/low_bit_test.cpp). Offloading does not change any
///           bit (tests/parallel/zero/offload_test.cpp)
/// Cost:     for n bytes of parameters and W ranks, the state takes 1/W of its size in one process (2 n bytes for
///           AdamW). Gradients take n bytes in stage 1. In stages 2 and 3, they take n/W bytes, plus up to four buckets
///           for the exchange, one that is being filled, and those that wait for an earlier one (docs/limitations.md).
///           Each step sends (W - 1)/W · n bytes; in stage 2, each backward() without no_sync() sends the same amount
///           again. In stage 3, parameters take n/W bytes, plus two buckets. Each forward, each backward and each
///           exchange of gradients sends (W - 1)/W · n bytes. With f bytes of frozen parameters and `shard_frozen`, each
///           step sends (W - 1)/W · f bytes, and up to f bytes of them stay in memory until step(). The check of each
///           operator takes about 0.4 µs. With Offload::file, each forward and each backward read the shards of
///           parameters once. Each step reads and writes all offloaded data once
/// Threads:  one thread at a time; in stages 2 and 3, backward() calls collectives on separate groups
/// Ref:      arXiv:1910.02054; torch.distributed.optim.ZeroRedundancyOptimizer; torch.distributed.fsdp.fully_shard (FSDP2)
class ShardedOptimizer final : public torch::optim::Optimizer,
                               public ScaledStep,
                               public NamedState,
                               public BackwardSteps {
 public:
  struct Impl;
  explicit ShardedOptimizer(std::unique_ptr<Impl> impl);
  ~ShardedOptimizer() override;

  /// Runs a step and gathers the updated parameters. Collective.
  /// Throws: c10::ValueError if a gradient is sparse, or if it belongs to a parameter that was frozen when the
  ///         optimizer was sharded (stages 2 and 3). The gradients then stay, so that you can call the function again.
  ///         c10::Error if an earlier backward() or step() ended with an error. Exceptions of the underlying optimizer
  ///         are passed on
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Returns a guard. While it exists, backward() adds its gradients to `parameter.grad()` without communication
  /// (stages 2 and 3; stage 3 still gathers parameters). The next backward() without a guard exchanges the sums. Guards
  /// can be nested. For gradient accumulation, create it for all batches of a step except the last one, on all ranks.
  /// zero_grad() does not clear these sums; to discard them, reset `parameter.grad()`. Destroy the guard before the
  /// optimizer. In stage 1, nothing happens: use DistributedDataParallel::no_sync().
  /// Numerics: the sums have the dtype of the parameters
  /// Cost:     memory for all gradients on every rank. Each backward() with a guard sends (W - 1)/W · n bytes less
  [[nodiscard]] std::shared_ptr<void> no_sync() const;

  /// Returns a guard. While it exists, each backward() is a step (stages 2 and 3): a bucket is updated as soon as its
  /// gradients are averaged, and its gradients are freed at once. At the end of backward(), the ranks gather the updated
  /// parameters. step() then does nothing. optim::step_in_backward() calls this function. Destroy the guard before the
  /// optimizer. All ranks must call this function.
  ///
  /// With one rank in `group` and all ranks in `replicas`, this is data parallelism with updates in backward. Every rank
  /// then has complete parameters and state, and gradients need the memory of a few buckets only.
  /// Numerics: bit-identical to backward(), step() and zero_grad() (tests/parallel/zero/in_backward_test.cpp)
  /// Cost:     gradients take no memory except for the exchange. For each bucket, the ranks also exchange one byte per
  ///           parameter, instead of one exchange per step
  /// Throws:   c10::ValueError in stage 1 (without gradients, stage 2 stores the same as stage 1 and sends less), if there are gradients, and if such a guard exists. While the guard exists,
  ///           no_sync(), clipping and a GradScaler throw, and so does backward() with create_graph. If backward() throws,
  ///           the ranks may hold different weights, and the next backward() throws, too
  std::shared_ptr<void> step_in_backward() override;

  bool takes_grad_scale() const override;
  void set_grad_scale(at::Tensor grad_scale, at::Tensor found_inf) override;

  /// Returns the complete state, on the CPU. Collective.
  /// Numerics: exact
  NamedTensors state_dict() const override;
  /// Loads this rank's share of a complete state.
  /// Throws: like optim::load_state_dict()
  void load_state_dict(const NamedTensors& state) override;

  /// Returns this rank's part of the state for a sharded checkpoint, with the names of state_dict(). The tensors share
  /// storage with the optimizer; scalars are copies. Scalars and the state of parameters that are not sharded occur on
  /// several ranks.
  /// Throws: c10::ValueError if the optimizer is a user-defined class, because its state cannot be split
  std::vector<comm::Shard> state_shards() const;
  /// Returns the parts of a saved state that this rank needs, with uninitialized tensors. The state may have been saved
  /// by a different number of ranks.
  /// Throws: c10::ValueError on every rank if the state contains unknown parameters or has different sizes, or if only
  ///         one of the two states (saved and current) is low-bit. Low-bit state must also have the same block size and
  ///         memory layout
  std::vector<comm::Shard> wanted_shards(const std::vector<SavedTensor>& saved) const;
  /// Loads the parts from wanted_shards(). Fill their tensors first.
  void load_shards(const std::vector<comm::Shard>& filled);

  /// Returns this rank's elements of each sharded parameter, in memory order, as a tensor [n] that shares storage with the
  /// shards; n may be 0. The names are those in the model. A tensor with two names occurs twice. After you have written
  /// to the elements, call release_parameters(). In stages 1 and 2, the result is empty, because every rank has complete
  /// parameters.
  NamedTensors local_parameters() const;
  /// Describes tensors with the names and shapes of local_parameters(), for example for a sharded checkpoint. The results
  /// are views of these tensors.
  std::vector<comm::Shard> shards_of(const NamedTensors& local) const;
  /// Gathers all parameters, and keeps them until step() or release_parameters(). In stages 1 and 2, nothing happens.
  /// Collective.
  /// Cost: memory for all parameters on every rank
  void gather_parameters();
  /// Frees gathered parameters. In stages 1 and 2, nothing happens.
  void release_parameters();
  /// Calls `body` with complete parameters, for example to save, initialize or overwrite them. All ranks must make the
  /// same changes. If `body` throws in stage 3, its changes are lost. Inside `body`, parameters have the dtype of the
  /// shards instead of `parameter_dtype`, so nothing is rounded. Collective.
  /// Cost: memory for all parameters on every rank, in the dtype of the shards
  void with_full_parameters(const std::function<void()>& body);

  /// Returns the sizes of this rank's files, after all waiting data are written. The sizes are 0 without files.
  /// Throws: c10::Error if the disk fails
  OffloadedBytes offloaded_bytes() const;

  /// The underlying optimizer, which updates this rank's share.
  torch::optim::Optimizer& local() const;
  /// Returns the model's parameters that the groups contain, in their order. In stages 2 and 3, param_groups() has shards
  /// instead.
  const std::vector<at::Tensor>& parameters() const;
  /// Returns the state_dict() of local(), with the current options. Calls no other rank. The tensors share memory with the
  /// optimizer.
  NamedTensors local_state() const;
  /// Loads the result of local_state() on a rank that holds the same share of the same model.
  /// Throws: like optim::load_state_dict()
  void load_local_state(const NamedTensors& state);
  /// Ends the sharding, so that the parameters can be sharded over other ranks. Calls no other rank. In stage 3, the
  /// parameters get memory without values. Afterwards, only destroy this object.
  /// Returns: the optimizer that was sharded, with the parameters of the model and the current options, without state
  std::shared_ptr<torch::optim::Optimizer> unshard();
  int stage() const;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  class UpdatesInBackward;
  void check_before_update() const;
  void check_owned_gradients() const;
  void finish_update();
  void take_gradients();
  void drop_gradients();
  void gather();
  void bump_versions();
  void copy_options_to_groups();
  void copy_options_to_local() const;

  std::unique_ptr<Impl> impl_;
};

/// Shards `optimizer` over the ranks of `group`. The model's parameters and buffers are set to the values of rank 0.
/// Parameters become views of larger buffers, so move and cast the model first. Existing optimizer state is sharded,
/// too, but the state of frozen parameters stays complete. Use the returned optimizer instead of `optimizer`.
/// Collective.
/// Params: optimizer – an elementwise optimizer: any optimizer of bellows::optim, including one with master weights or
///                     low-bit state, or any optimizer of torch::optim except LBFGS. Optimizers that need norms or
///                     means of complete parameters (LARC, LAMB, Adafactor) and stochastic_rounding are not supported
///         model – the model that owns the parameters. It may contain other parameters, too. If TensorParallel has
///                 divided its layers, `group` contains the ranks with the same slices; keep that object
/// Throws: c10::ValueError, before anything changes, if the ranks' parameters, options or versions of Bellows or libtorch
///         differ (the message names the rank and the difference). Paths may differ. It is also thrown if an option is
///         out of range, or if a pattern in `units` matches no module (the message suggests one). The parameters must not
///         belong to another model or to amp::MasterWeights. Not supported are LBFGS,
///         Adafactor, lr_tensor, stochastic_rounding, and low-bit state of parameters that are not row-major. With
///         `offload_state` = file, optimizers without state and user-defined classes are not supported, either.
///         c10::Error on every rank if the folder of one rank does not exist or its disk has too little space.
///         After an error of `offload_state`, the parameters have the values of rank 0, and the optimizer has its
///         earlier state. You can call the function again with other options
std::shared_ptr<ShardedOptimizer> zero_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, const Model& model,
                                                 const comm::Group& group, const ShardOptions& options = {});

}  // namespace bellows::parallel
