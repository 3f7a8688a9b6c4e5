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
#include "bellows/core/model_parts.h"
#include "bellows/parallel/context/context_attention.h"
#include "bellows/parallel/tensor/tensor_parallel.h"

namespace bellows::parallel {

struct ContextOptions {
  ContextMethod method = ContextMethod::ring;
  /// Rank r of n has the chunks r and 2n - 1 - r of 2n chunks, which balances causal attention. If false, it has chunk
  /// r of n.
  bool zigzag = true;
  /// Draws the masks of at::dropout and of attention. By default, libtorch's default generator draws them. The state
  /// must be the same on all ranks of the axis. Activation checkpointing of dropout needs the default generator.
  std::optional<at::Generator> generator;
  bool check_finite = false;  ///< see ContextAttentionOptions
  /// The object that parallelize() created from the same model for the ranks of another axis, which divide its layers.
  /// Set the same generator in TensorOptions, or none in both.
  std::optional<TensorParallel> tensor = std::nullopt;
};

/// A part of a model that maps one tensor to one tensor, and a function that calls it; see models/blocks.h.
using ContextBlock = std::function<at::Tensor(const at::Tensor&)>;
using RunContextBlock = std::function<at::Tensor(const ContextBlock&, const at::Tensor&)>;

struct ContextBlocks {
  /// Gather the complete sequence after the last block. If false, the rest of the model computes this rank's tokens
  /// only. It must then compute each token on its own, without dropout, like the language model heads of BERT,
  /// DistilBERT and GPT-2.
  bool gather = true;
  /// Calls the blocks, for example with recompute::checkpoint(). If null, they are called directly.
  RunContextBlock run;
};

/// Divides the sequence of a model's activations among the ranks of a group (context parallelism). Every rank holds all
/// parameters and reads the same batch. It computes the blocks of the model for its part of each sequence only, and the
/// ranks exchange keys and values in attention. The object is a handle: copies share their state.
///
///     bw::parallel::ContextParallel context(mesh, "context");
///     models::run_blocks_by(model, context.blocks(models::run_blocks_by(model, {})));
///     bw::parallel::DistributedDataParallel ddp(model, mesh.group("context"));
///     at::cross_entropy_loss(ddp.forward(ids).flatten(0, 1), targets.flatten()).backward();
///
/// Gradients: each rank computes its part. The mean of the parts over the ranks of the axis is the gradient of the mean
/// of the ranks' losses. DistributedDataParallel over the axis, or over comm::combine() of the data axis and this axis,
/// computes this mean, and so does average_gradients(). If the blocks gather the sequence, each rank has the loss of
/// the complete sequence. Otherwise, use loss(). After the mean, all ranks have the same gradients, so optimizers and
/// clip_grad_norm_() work unchanged.
///
/// With tensor parallelism, set ContextOptions::tensor. For its sequence parallelism, which divides this rank's part of
/// each sequence again, set ContextBlocks::run to TensorParallel::sequence_blocks(). Compute the mean over the ranks
/// with the same slices of the layers: comm::combine() of the data axis and this axis. With pipeline parallelism, use
/// stage_parts() and stage_blocks(), and set PipelineOptions::context.
///
/// Numerics: in fp64, loss, gradients and weights of 20 steps match one process to 1e-9, with dropout, gradient
///           accumulation and clipping (tests/parallel/context). docs/numerics.md lists the tolerances for fp32 and
///           bf16
/// Cost:     that of context_attention() for each attention. The memory of the blocks' activations is divided by the
///           number of ranks. Gathering sends (n - 1) / n of the output's bytes in forward and in backward. Random
///           masks are drawn completely on each rank
/// Threads:  not thread-safe; backward may run on autograd's threads
/// Throws:   forward throws c10::ValueError on all ranks if the arguments of attention are invalid or differ (the
///           message names the rank), and c10::Error if a rank ended. Second derivatives throw
/// Ref:      torch.distributed.tensor.experimental.context_parallel; Megatron-LM --context-parallel-size
class ContextParallel {
 public:
  struct State;

  /// Collective.
  /// Throws: c10::ValueError on all ranks if the ranks' options or versions of Bellows or libtorch differ
  explicit ContextParallel(const comm::Group& group, const ContextOptions& options = {});
  /// The same, over one axis of a mesh.
  /// Throws: c10::ValueError if the axis does not exist
  ContextParallel(const comm::Mesh& mesh, const std::string& axis, const ContextOptions& options = {});

  const comm::Group& group() const;

  /// While this guard exists, at::scaled_dot_product_attention on this thread computes over the complete sequence, and
  /// at::dropout draws the masks of one process. Without blocks(), all tensors are treated as parts of a sequence:
  /// tokens are in dim 1 of activations, and in dim 2 of queries, keys and values. With blocks(), only tensors within
  /// the blocks are, and a scope is needed only for ContextOptions::generator.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<State> state);
    ~Scope() = default;
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<State> state_;
    std::shared_ptr<void> tap_, check_, masks_;  ///< guards, which end in reverse order
  };
  [[nodiscard]] Scope scope() const { return Scope(state_); }

  /// Returns this rank's part of a complete sequence, such as token ids, targets or a mask. It is differentiable.
  /// Throws: c10::ValueError if the length of `dim` is not a multiple of the number of ranks, or of twice this number
  ///         in zig-zag order
  at::Tensor slice(const at::Tensor& x, int64_t dim) const;
  /// Gathers the ranks' parts along `dim`, in the order of the tokens. Backward adds the gradients of all ranks.
  /// Collective, in forward and in backward.
  at::Tensor gather(const at::Tensor& x, int64_t dim) const;
  /// Returns the positions of this rank's tokens in a sequence of `tokens` tokens: int64 [tokens / ranks].
  at::Tensor positions(int64_t tokens) const;

  /// Returns a function for models::run_blocks_by(). The first block of each stack gets this rank's part of the
  /// sequence (dim 1), and the last block of the last stack gathers it. Embeddings before the blocks are computed for
  /// the complete sequence, so the positions of the tokens do not change. Padding masks stay complete.
  /// Params: stacks – the number of blocks of each stack: {count} for a model with one stack, where `count` is the
  ///                  result of models::run_blocks_by(), and {encoder, decoder} for a model with cross-attention
  /// Throws: c10::ValueError if a stack is empty. Forward throws as slice()
  RunContextBlock blocks(const std::vector<int64_t>& stacks, const ContextBlocks& options = {}) const;
  RunContextBlock blocks(int64_t count, const ContextBlocks& options = {}) const {
    return blocks(std::vector<int64_t>{count}, options);
  }

  /// Returns the parts of a model for pipeline(). The first part, the embeddings, returns this rank's part of the
  /// sequence (dim 1), and the last part, the head, gathers it. The object must exist as long as the parts.
  /// Params: parts – of a model with one stack, such as BERT, DistilBERT and GPT-2
  /// Throws: c10::ValueError if there are fewer than three parts. Forward throws as slice()
  ModelParts stage_parts(const ModelParts& parts) const;
  /// Returns a function for models::run_blocks_by() with which the blocks between the first and the last part of
  /// stage_parts() compute this rank's part of the sequence.
  /// Params: run – calls the blocks; see ContextBlocks
  RunContextBlock stage_blocks(const RunContextBlock& run = {}) const;

  /// Returns this rank's loss if its output is divided. The mean of the ranks' losses is sum / count over all tokens.
  /// Collective; backward exchanges nothing.
  /// Params: sum – sum of the losses of this rank's tokens; count – number of these tokens, or the sum of their weights
  at::Tensor loss(const at::Tensor& sum, const at::Tensor& count) const;
  /// Replaces the gradients by their means over the ranks, for loops without DistributedDataParallel; see
  /// parallel::average_gradients(). Collective: call it once per step, after the last backward.
  void average_gradients(const std::vector<at::Tensor>& parameters) const;

  /// Returns a text such as "4 ranks, ring, zig-zag".
  std::string describe() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace bellows::parallel
