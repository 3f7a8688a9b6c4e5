#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/mesh.h"
#include "bellows/comm/shard.h"
#include "bellows/core/model.h"
#include "bellows/parallel/tensor/cross_entropy.h"
#include "bellows/parallel/tensor/divided_dropout.h"
#include "bellows/parallel/tensor/tensor_plan.h"
#include "bellows/parallel/zero/zero_optimizer.h"

namespace bellows::parallel {

struct TensorOptions {
  /// Draws the masks of at::dropout and of attention. By default, libtorch's default generator draws them. The state
  /// must be the same on all ranks of the axis. Fused layers of the component nn always use the default generator.
  /// Activation checkpointing of dropout needs the default generator, too: with this option, backward throws.
  std::optional<at::Generator> generator;
  bool broadcast = true;  ///< copy the parameters and buffers of rank 0 to all ranks before they are divided
};

/// A model whose layers are divided among the ranks of a group. Every rank reads the same batch, computes a part of each
/// layer, and the ranks add their results. parallelize() creates the object. It is a handle: copies share their state.
///
///     auto tensor = bw::parallel::parallelize(model, mesh, "tensor", bw::parallel::tensor_plan(model));
///     const auto scope = tensor.scope();                          // around forward, loss and backward
///     at::cross_entropy_loss(tensor.forward(x).flatten(0, 1), y.flatten()).backward();
///
/// Parameters of the model are this rank's slices, which are ordinary tensors. Optimizers that compute each element on
/// its own, such as SGD and AdamW, work unchanged. clip_grad_norm_() and GradScaler use the gradients of all ranks. For
/// data parallelism, create DistributedDataParallel with model() and the group of the data axis, or call
/// zero_optimizer() with them.
///
/// Numerics: results do not depend on the number of ranks, except for rounding. In fp64, loss, gradients and weights of
///           20 steps match one process to 1e-9, with dropout, gradient accumulation and clipping
///           (tests/parallel/tensor). docs/numerics.md lists the tolerances for fp32 and bf16
/// Cost:     each pair of a column and a row layer all-reduces the layer's output in forward and the gradient of its
///           input in backward. A divided vocabulary adds one all-reduce of the embeddings, one of the gradient of the
///           hidden states, and those of cross_entropy(). Random masks of divided tensors are drawn completely on each
///           rank. Each operator of forward costs one boxed dispatch
/// Threads:  not thread-safe; backward may run on autograd's threads
/// Throws:   forward throws c10::Error if an unsupported operator reads a divided weight (the message names both), if
///           the ranks' first batches or the states of their random generators differ, or if a rank ended. Backward
///           throws if create_graph is set, or if a checkpointed function draws dropout masks with
///           TensorOptions::generator
/// Ref:      arXiv:1909.08053 (Megatron-LM), arXiv:2205.05198 (sequence parallelism);
///           torch.distributed.tensor.parallel.parallelize_module
class TensorParallel {
 public:
  struct State;
  explicit TensorParallel(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// The divided model. Use it instead of the original model, whose parameters are divided, too.
  const Model& model() const;
  const comm::Group& group() const;
  /// Same as model().forward(input).
  at::Tensor forward(const at::Tensor& input) const;

  /// While this guard exists, at::cross_entropy_loss on this thread accepts divided logits, and activation
  /// checkpointing recomputes divided layers. The model's forward creates one itself if there is none.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<State> state);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<State> state_;
    std::shared_ptr<void> guard_;
  };
  [[nodiscard]] Scope scope() const { return Scope(state_); }

  /// Calls `body`, which may run one forward pass of the original model, such as a loss function. While it runs, the
  /// layers are divided as in forward(). Backward may run later, in a scope().
  /// Params: inputs – tensors that must be equal on all ranks, such as those of the batch; compared once
  /// Throws: like forward()
  void run(const std::vector<at::Tensor>& inputs, const std::function<void()>& body) const;

  // For pipeline(), which runs parts of the model in another order. In a forward pass, run() calls the first three.
  /// In the first forward pass, compares tensors that must be equal on all ranks. Collective.
  void compare_batches(const std::vector<at::Tensor>& inputs) const;
  /// Calls `body`, which may run a part of the forward pass in a scope().
  /// Throws: c10::Error if sequence parallelism is on at the end of the part
  void run_part(const std::function<void()>& body) const;
  /// In the first forward pass, throws c10::Error if a divided weight was not used.
  void check_layers() const;

  // For ContextParallel, which draws masks for parts of the sequence.
  /// While set, dropout draws no masks. Returns the previous value.
  bool set_masks_left(bool on) const;
  /// Whether the forward pass is inside of the blocks of sequence_blocks(), where each rank has a part of the tokens.
  bool divides_sequences() const;
  /// Returns this rank's slice of a tensor that dropout or attention gets in the forward pass.
  RandomSlice random_slice(const at::Tensor& x) const;

  /// Whether a forward pass has computed divided logits.
  bool has_divided_logits() const;

  /// Returns a function for models::run_blocks_by(), which enables sequence parallelism: inside of the blocks, each rank
  /// computes norms, dropout and residuals for a part of the sequence (dim 1) only. This divides the memory of their
  /// activations by the number of ranks.
  /// Params: blocks – the number of blocks, which models::run_blocks_by() returns
  /// Cost:   sends as many bytes as without sequence parallelism, and the gradients of norms and biases. Backward gathers
  ///         the inputs of column layers again, except under autocast or if a saved-tensor tap is installed
  /// Throws: c10::ValueError if the model has cross-attention, which is not supported. Forward throws c10::ValueError if
  ///         the number of ranks does not divide the length of the sequence, and c10::Error if the model uses fused
  ///         layers of the component nn
  std::function<at::Tensor(const std::function<at::Tensor(const at::Tensor&)>&, const at::Tensor&)> sequence_blocks(
      int64_t blocks) const;

  /// Gathers divided logits: [*, classes of this rank] → [*, classes], on all ranks. It has no gradient. Collective.
  at::Tensor gather_logits(const at::Tensor& logits) const;
  /// Returns gather_logits() if has_divided_logits(), and otherwise `logits`, which may be undefined. Collective.
  at::Tensor complete_logits(const at::Tensor& logits) const;

  /// Describes this rank's parts of the model's parameters and buffers for a sharded checkpoint (checkpoint/sharded.h)
  /// or for comm::gather(). Any number of ranks, and one process, can load them.
  std::vector<comm::Shard> shards() const;
  /// Describes tensors with the names and the sizes of this rank's parameters and buffers, such as their averages. The
  /// parts are views of these tensors.
  /// Throws: c10::ValueError if a name is not in the model's state_dict()
  std::vector<comm::Shard> shards_of(const NamedTensors& local) const;
  /// Converts parts of this rank's slices to parts of complete tensors, for example the shards of a ShardedOptimizer
  /// (ZeRO-3). The results are views of the given tensors.
  /// Throws: like shards_of()
  std::vector<comm::Shard> complete_shards(const std::vector<comm::Shard>& of_slices) const;
  /// Restores the complete parameters on all ranks and removes the gradients. Afterwards, destroy this object and all
  /// objects that use the parameters, such as optimizers. Collective.
  void restore_model() const;
  /// Describes this rank's parts of the optimizer's state, with the names of optim::state_dict().
  /// Throws: c10::ValueError if the state is not elementwise, as in Adafactor, or has low-bit tensors
  std::vector<comm::Shard> state_shards(const torch::optim::Optimizer& optimizer) const;
  /// Returns parts for the saved state of an optimizer. Fill their tensors, then call load_shards().
  /// Params: saved – the tensors of the checkpoint, with the sizes of complete tensors
  std::vector<comm::Shard> wanted_shards(const torch::optim::Optimizer& optimizer,
                                         const std::vector<SavedTensor>& saved) const;
  void load_shards(torch::optim::Optimizer& optimizer, const std::vector<comm::Shard>& filled) const;

  /// Returns a text such as "2 ranks, 26 of 40 parameters divided, 3.2 of 5.9 MiB on this rank".
  std::string describe() const;

 private:
  std::shared_ptr<State> state_;
};

/// Divides the parameters that `plan` selects among the ranks of a group. Each parameter's data are replaced by this
/// rank's slice, and gradients are removed. Call it before you create optimizers and DistributedDataParallel.
/// Collective.
/// Params: group – the ranks that compute one model together, such as a mesh axis
/// Cost:   broadcasts the model once. Each rank needs memory for the complete model until the function returns
/// Throws: c10::ValueError, before anything changes, if the ranks' models, plans or versions of Bellows or libtorch
///         differ (the message names the difference), or for the reasons of find_cuts()
TensorParallel parallelize(const Model& model, const comm::Group& group, const TensorPlan& plan,
                           const TensorOptions& options = {});
/// The same, over one axis of a mesh.
/// Throws: c10::ValueError if the axis does not exist
TensorParallel parallelize(const Model& model, const comm::Mesh& mesh, const std::string& axis, const TensorPlan& plan,
                           const TensorOptions& options = {});

/// Whether a TensorParallel object has divided this parameter. Always false while a Pipeline has the parameter.
bool is_divided(const at::Tensor& parameter);

}  // namespace bellows::parallel
