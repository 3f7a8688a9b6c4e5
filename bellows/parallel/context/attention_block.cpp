#include "bellows/parallel/context/attention_block.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <limits>
#include <optional>

namespace bellows::parallel {

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

/// The CPU flash kernel does not support dropout, and requires values of the same width as the keys.
bool uses_flash(const AttentionBlock& block) {
  return block.query.is_cpu() && !block.kept.defined() && block.query.size(3) == block.value.size(3);
}

/// Repeats the heads of keys or values that several heads of the queries share.
at::Tensor for_all_heads(const at::Tensor& x, const at::Tensor& query) {
  const int64_t times = query.size(1) / x.size(1);
  return with_dense_rows(times == 1 ? x : x.repeat_interleave(times, 1));
}

at::Tensor sum_of_heads(const at::Tensor& gradient, const at::Tensor& x) {
  if (gradient.size(1) == x.size(1)) return gradient;
  return gradient.unflatten(1, {x.size(1), gradient.size(1) / x.size(1)}).sum(2);
}

std::optional<at::Tensor> flash_mask(const AttentionBlock& block) {
  return block.mask.defined() ? std::optional(block.mask.contiguous()) : std::nullopt;
}

/// True for queries whose keys are all hidden: [N or 1, H or 1, Q or 1]. The flash kernel returns zeros for them, but
/// not the logarithm of zero.
at::Tensor fully_masked_queries(const AttentionBlock& block) {
  const at::Tensor hidden = block.mask.eq(minus_infinity).squeeze(2);
  return block.causal ? hidden.logical_not().cumsum(-1).eq(0) : hidden.all(-1, /*keepdim=*/true);
}

at::Tensor wide(const at::Tensor& x) {
  return x.to(merge_dtype(x));
}

at::Tensor scores_of(const AttentionBlock& block, const at::Tensor& key) {
  at::Tensor scores = at::matmul(wide(block.query), wide(key).transpose(-2, -1)).mul_(block.scale);
  if (block.mask.defined()) scores.add_(block.mask);
  if (block.causal) {
    const at::Tensor visible = at::ones({scores.size(2), scores.size(3)}, scores.options().dtype(at::kBool)).tril();
    scores.masked_fill_(visible.logical_not(), minus_infinity);
  }
  return scores;
}

/// The factors with which dropout multiplies weights.
at::Tensor dropout_factors(const AttentionBlock& block, const at::Tensor& weights) {
  return block.kept.to(weights.scalar_type()).mul_(block.dropout < 1 ? 1 / (1 - block.dropout) : 0);
}

/// Blocks are computed in the dtypes of their tensors.
struct WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

}  // namespace

at::ScalarType merge_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor with_dense_rows(const at::Tensor& x) {
  return x.stride(-1) == 1 ? x : x.contiguous();
}

at::Tensor finite_log_weight(const at::Tensor& log_weight) {
  return log_weight.masked_fill(log_weight.eq(minus_infinity), 0);
}

AttentionOutput attend(const AttentionBlock& block) {
  const WithoutAutocast plain;
  const at::Tensor key = for_all_heads(block.key, block.query), value = for_all_heads(block.value, block.query);
  if (uses_flash(block)) {
    auto [out, log_weight] = at::_scaled_dot_product_flash_attention_for_cpu(
        with_dense_rows(block.query), key, value, /*dropout_p=*/0, block.causal, flash_mask(block), block.scale);
    if (block.mask.defined()) log_weight = log_weight.masked_fill(fully_masked_queries(block), minus_infinity);
    return {out, log_weight};
  }
  at::Tensor weights = scores_of(block, key);
  const at::Tensor log_weight = at::logsumexp(weights, {-1});
  weights.sub_(finite_log_weight(log_weight).unsqueeze(-1)).exp_();
  if (block.kept.defined()) weights.mul_(dropout_factors(block, weights));
  return {at::matmul(weights, wide(value)), log_weight};
}

void merge(AttentionOutput& all, const AttentionOutput& block, int64_t begin) {
  const int64_t queries = block.log_weight.size(2);
  at::Tensor out = all.out.narrow(2, begin, queries), log_weight = all.log_weight.narrow(2, begin, queries);
  const at::Tensor sum = at::logaddexp(log_weight, block.log_weight), shift = finite_log_weight(sum);
  out.mul_((log_weight - shift).exp_().unsqueeze(-1));
  out.addcmul_(block.out.to(out.scalar_type()), (block.log_weight - shift).exp_().unsqueeze(-1));
  log_weight.copy_(sum);
}

AttentionGradients attend_backward(const AttentionBlock& block, const at::Tensor& gradient, const at::Tensor& out,
                                   const at::Tensor& log_weight) {
  const WithoutAutocast plain;
  const at::Tensor key = for_all_heads(block.key, block.query), value = for_all_heads(block.value, block.query);
  if (uses_flash(block)) {
    auto [query_part, key_part, value_part] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, with_dense_rows(block.query), key, value, out, log_weight, /*dropout_p=*/0, block.causal,
        flash_mask(block), block.scale);
    return {query_part, sum_of_heads(key_part, block.key), sum_of_heads(value_part, block.value)};
  }
  const at::Tensor weights = scores_of(block, key).sub_(log_weight.unsqueeze(-1)).exp_();
  const at::Tensor wide_gradient = wide(gradient);
  at::Tensor slopes = at::matmul(wide_gradient, wide(value).transpose(-2, -1)), dropped = weights;
  if (block.kept.defined()) {
    const at::Tensor factors = dropout_factors(block, weights);
    slopes.mul_(factors);
    dropped = weights * factors;
  }
  slopes.sub_((wide_gradient * wide(out)).sum(-1, /*keepdim=*/true)).mul_(weights).mul_(block.scale);
  return {at::matmul(slopes, wide(key)),
          sum_of_heads(at::matmul(slopes.transpose(-2, -1), wide(block.query)), block.key),
          sum_of_heads(at::matmul(dropped.transpose(-2, -1), wide_gradient), block.value)};
}

}  // namespace bellows::parallel
