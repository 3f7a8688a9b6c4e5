#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include "bellows/data/order/packing.h"

namespace bellows::data {

namespace {

void check_rows(const char* who, const at::Tensor& segment_ids) {
  TORCH_CHECK_VALUE(segment_ids.dim() == 2, who, ": expected segment_ids [N, T], got sizes ", segment_ids.sizes(), ".");
}

}  // namespace

at::Tensor attention_mask(const at::Tensor& segment_ids, bool causal) {
  check_rows("attention_mask", segment_ids);
  const at::Tensor mask = segment_ids.unsqueeze(1).eq(segment_ids.unsqueeze(2)).unsqueeze(1);
  return causal ? mask.tril() : mask;
}

at::Tensor padding_mask(const at::Tensor& lengths, int64_t length) {
  TORCH_CHECK_VALUE(lengths.dim() == 1, "padding_mask: expected lengths [N], got sizes ", lengths.sizes(), ".");
  return at::arange(length, lengths.options()).lt(lengths.unsqueeze(1));
}

at::Tensor cumulative_lengths(const at::Tensor& segment_ids) {
  check_rows("cumulative_lengths", segment_ids);
  at::Tensor begins = at::ones_like(segment_ids, at::kBool);
  const int64_t length = segment_ids.size(1);
  if (length > 1) begins.slice(1, 1).copy_(segment_ids.slice(1, 1).ne(segment_ids.slice(1, 0, length - 1)));
  const at::Tensor starts = at::nonzero(begins.flatten()).squeeze(1);
  const at::Tensor end = at::full({1}, segment_ids.numel(), starts.options());
  return at::cat({starts, end}).to(at::kInt);
}

at::Tensor next_tokens(const at::Tensor& tokens, const at::Tensor& segment_ids, int64_t ignore) {
  check_rows("next_tokens", segment_ids);
  TORCH_CHECK_VALUE(tokens.sizes() == segment_ids.sizes(), "next_tokens: expected tokens of the sizes of segment_ids, ",
                    segment_ids.sizes(), ", got ", tokens.sizes(), ".");
  at::Tensor targets = at::full_like(tokens, ignore);
  const int64_t length = tokens.size(1);
  if (length < 2) return targets;
  const at::Tensor segment = segment_ids.slice(1, 1);
  const at::Tensor follows = segment.eq(segment_ids.slice(1, 0, length - 1)).logical_and(segment.ne(0));
  targets.slice(1, 0, length - 1).copy_(at::where(follows, tokens.slice(1, 1), at::full_like(segment, ignore)));
  return targets;
}

}  // namespace bellows::data
