#include "bellows/parallel/context/context_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <vector>

#include "bellows/parallel/context/context_call.h"
#include "bellows/parallel/context/context_exchange.h"
#include "bellows/parallel/context/ring_attention.h"

namespace bellows::parallel {

namespace {

/// One call, with all that its method needs.
struct ContextCall {
  RingInput input;
  RingOptions ring;
};

/// The mask of all keys, added to the scores: [N or 1, H or 1, 1, all keys].
at::Tensor complete_mask(const ContextAttentionOptions& options, const at::Tensor& query, int64_t keys,
                         const comm::Group& group, const SequenceLayout& layout) {
  if (!options.mask.defined()) return {};
  const c10::NoGradGuard no_grad;
  at::Tensor mask = options.mask.detach();
  while (mask.dim() < 4) mask = mask.unsqueeze(0);
  if (mask.size(3) == keys) mask = gather_tokens(mask, 3, layout, group);
  if (mask.scalar_type() != at::kBool) return mask.to(query.scalar_type());
  return at::zeros(mask.sizes(), query.options())
      .masked_fill_(mask.logical_not(), -std::numeric_limits<double>::infinity());
}

/// The weights that dropout keeps, of all queries and keys and of this rank's heads, drawn as one process draws them.
at::Tensor draw_kept(const at::Tensor& query, int64_t keys, int ranks, const ContextAttentionOptions& options) {
  const c10::NoGradGuard no_grad;
  return kept_elements({query.size(0), query.size(1), query.size(2) * ranks, keys * ranks}, query.options(),
                       options.dropout, options.heads, options.generator)
      .to(at::kBool);
}

/// Keys and values of all ranks in the order of the tokens.
at::Tensor all_tokens(const at::Tensor& x, const RingOptions& options) {
  return gather_tokens(x, 2, options.layout, options.group);
}

/// The reference: libtorch's operators for this rank's queries and all keys.
at::Tensor gathered_attention(const ContextCall& call) {
  const RingOptions& options = call.ring;
  const at::Tensor& query = call.input.query;
  const int64_t times = query.size(1) / call.input.key.size(1);
  const at::Tensor key = all_tokens(call.input.key, options).repeat_interleave(times, 1);
  const at::Tensor value = all_tokens(call.input.value, options).repeat_interleave(times, 1);
  at::Tensor mask = call.input.mask;
  if (options.causal) {
    const int64_t keys = key.size(2);
    const at::Tensor own = token_positions(keys, options.group.rank(), options.layout).unsqueeze(1);
    const at::Tensor later = own.lt(at::arange(keys)).to(query.device());
    const at::Tensor hidden =
        at::zeros(later.sizes(), query.options()).masked_fill_(later, -std::numeric_limits<double>::infinity());
    mask = mask.defined() ? mask + hidden : hidden;
  }
  if (!call.input.kept.defined()) {
    return at::scaled_dot_product_attention(query, key, value, mask.defined() ? std::optional(mask) : std::nullopt, 0,
                                            false, options.scale);
  }
  at::Tensor weights = at::matmul(query * options.scale, key.transpose(-2, -1));
  if (mask.defined()) weights = weights + mask;
  const double factor = options.dropout < 1 ? 1 / (1 - options.dropout) : 0;
  return at::matmul(at::_safe_softmax(weights, -1) * call.input.kept * factor, value);
}

/// Sends the ranks their heads of `tensors`, each [N, heads, T, …], in one exchange. The results contain this rank's
/// heads of the complete sequence.
std::vector<at::Tensor> to_heads(const std::vector<at::Tensor>& tensors, const RingOptions& options) {
  const int64_t ranks = options.layout.ranks;
  std::vector<at::Tensor> parts, result;
  for (const at::Tensor& x : tensors)
    parts.push_back(x.unflatten(1, {ranks, x.size(1) / ranks}).movedim(1, 0).flatten(1));
  const at::Tensor received = exchange_parts(at::cat(parts, 1), options.group);
  int64_t begin = 0;
  for (const at::Tensor& x : tensors) {
    const int64_t count = x.numel() / ranks;
    const at::Tensor part =
        received.narrow(1, begin, count).view({ranks, x.size(0), x.size(1) / ranks, x.size(2), x.size(3)});
    result.push_back(in_token_order(part.movedim(0, 2).flatten(2, 3), 2, options.layout));
    begin += count;
  }
  return result;
}

/// The reverse: this rank's tokens of all heads.
at::Tensor to_tokens(const at::Tensor& x, const RingOptions& options) {
  std::vector<at::Tensor> parts;
  parts.reserve(static_cast<size_t>(options.layout.ranks));
  for (int rank = 0; rank < options.layout.ranks; ++rank) parts.push_back(part_of_rank(x, 2, rank, options.layout));
  return exchange_parts(at::stack(parts), options.group).movedim(0, 1).flatten(1, 2);
}

at::Tensor exchanged_attention(const ContextCall& call) {
  const RingOptions& options = call.ring;
  const int64_t ranks = options.layout.ranks, heads = call.input.query.size(1) / ranks;
  const auto of_heads = [&](const at::Tensor& x) {
    return x.defined() && x.size(1) > 1 ? x.narrow(1, options.group.rank() * heads, heads) : x;
  };
  const std::vector<at::Tensor> parts = to_heads({call.input.query, call.input.key, call.input.value}, options);
  RingOptions alone = options;
  alone.layout = {.ranks = 1};
  const at::Tensor y =
      ring_attention({parts[0], parts[1], parts[2], of_heads(call.input.mask), of_heads(call.input.kept)}, alone);
  return to_tokens(y, options);
}

}  // namespace

at::Tensor context_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const comm::Group& group, const ContextAttentionOptions& options) {
  check_context_call(query, key, value, group, options);
  const SequenceLayout layout{.ranks = group.size(), .zigzag = options.zigzag};
  ContextCall call{.input = {query, key, value, complete_mask(options, query, key.size(2), group, layout), {}},
                   .ring = {.group = group,
                            .layout = layout,
                            .causal = options.causal,
                            .dropout = options.dropout,
                            .scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(3))))}};
  if (options.dropout > 0) {
    const at::Tensor kept = draw_kept(query, key.size(2), group.size(), options);
    const bool all_queries = options.method == ContextMethod::all_to_all;
    call.input.kept = all_queries ? kept : part_of_rank(kept, 2, group.rank(), layout);
  }
  switch (options.method) {
    case ContextMethod::all_to_all:
      return group.size() == 1 ? ring_attention(call.input, call.ring) : exchanged_attention(call);
    case ContextMethod::gather:
      return gathered_attention(call);
    default:
      return ring_attention(call.input, call.ring);
  }
}

}  // namespace bellows::parallel
