#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <optional>

#include "bellows/comm/group.h"
#include "bellows/parallel/tensor/divided_dropout.h"

namespace bellows::parallel {

/// The exchange with which ranks compute attention over a sequence that they divide.
enum class ContextMethod {
  ring,        ///< keys and values travel around the ring of ranks. Memory per rank is independent of the other ranks
  all_to_all,  ///< each rank gets some heads of the complete sequence (Ulysses)
  gather,      ///< each rank gathers all keys and values. This is the reference for the other methods
};

/// Options for the complete sequence, as for at::scaled_dot_product_attention.
struct ContextAttentionOptions {
  /// Padding mask of keys: bool, true for visible keys, or a floating-point tensor that is added to the scores. Its
  /// shape broadcasts to [N, H, 1, K]. K is the number of keys of this rank, or of all ranks in the order of the
  /// tokens.
  at::Tensor mask;
  double dropout = 0;  ///< probability with which an attention weight is set to zero
  /// The heads that this rank has, in dim 1, if tensor parallelism divides them. Dropout draws the masks of all heads.
  RandomSlice heads = {.dim = 1};
  bool causal = false;
  std::optional<double> scale;  ///< factor of the scores [default: 1 / √d]
  bool grouped = false;         ///< several heads of the queries may share a head of the keys (enable_gqa)
  ContextMethod method = ContextMethod::ring;
  /// Rank r of n holds the chunks r and 2n - 1 - r of 2n chunks of the sequence. If false, it holds chunk r of n.
  bool zigzag = true;
  /// Draws dropout masks. By default, libtorch's default generator draws them. Its state must be the same on all ranks.
  std::optional<at::Generator> generator;
  /// Throws on all ranks if a query, key or value of a rank is NaN or infinite. Reads these tensors once.
  bool check_finite = false;
};

/// Attention over a sequence that is divided among the ranks of a group. Returns the output for this rank's queries,
/// and is differentiable. Collective, in forward and in backward.
///
/// All ranks must pass tensors of the same shapes, and the same options. The number of keys may differ from the number
/// of queries, as in cross-attention, if keys are divided in the same way and the attention is not causal. Queries
/// without a visible key get zeros.
/// Shapes:   query [N, H, Q, d]; key [N, G, K, d]; value [N, G, K, e] → [N, H, Q, e]. Q and K are the tokens of this
///           rank. G is H, or divides H if `grouped` is set
/// Numerics: equals at::scaled_dot_product_attention of the complete sequence except for rounding, also with dropout,
///           whose mask is that of one process. The ring adds its blocks in fp32, or in fp64 for fp64. docs/numerics.md
///           lists the tolerances
/// Cost:     with K bytes of keys and values per rank and n ranks, the ring sends (n - 1) · K bytes in forward.
///           Backward sends the same and the gradients of keys and values, in fp32 or fp64, (n - 1) times. It holds two
///           blocks of keys and values at a time, and skips blocks that a causal mask hides. all_to_all sends (n - 1) /
///           n of the bytes of this rank's queries, keys, values and outputs, and the same in backward. Each call also
///           all-gathers 8 bytes, with which the ranks compare their arguments. Dropout draws the complete mask
///           [N, H, all queries, all keys] on each rank, and keeps this rank's rows with one byte per element
/// Threads:  like collectives of the group
/// Throws:   c10::ValueError on all ranks if arguments are invalid or differ between ranks (the message names the
///           rank), before queries, keys or values are exchanged; c10::Error if a rank ended; second derivatives throw
/// Ref:      arXiv:2310.01889 (ring attention), arXiv:2309.14509 (Ulysses), arXiv:2407.21783, section 3.3.2;
///           torch.distributed.tensor.experimental.context_parallel
at::Tensor context_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const comm::Group& group, const ContextAttentionOptions& options = {});

}  // namespace bellows::parallel
