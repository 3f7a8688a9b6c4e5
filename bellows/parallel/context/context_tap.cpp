#include "bellows/parallel/context/context_tap.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <string_view>
#include <utility>
#include <vector>

#include "bellows/parallel/context/context_call.h"
#include "bellows/parallel/tensor/divided_dropout.h"

namespace bellows::parallel {

void ContextTap::call(const tap::OpRef& op, std::span<c10::IValue> /*arguments*/) {
  if (op.name() == std::string_view("aten::embedding")) output_divided_ = false;
}

bool ContextTap::compute(const tap::OpRef& op, tap::Stack& stack) {
  if (group_.size() == 1 && !options_.generator) return false;
  const std::string_view name = op.name();
  if (name == "aten::scaled_dot_product_attention") return attention(op, stack);
  return name == "aten::dropout" && dropout(op, stack);
}

void ContextTap::check(const tap::OpRef& op, tap::Stack& stack) {
  if (op.name() != "bellows::dropout_norm" || group_.size() == 1 || !divided()) return;
  TORCH_CHECK(op.arguments(stack)[5].toDouble() == 0, "context parallelism: the fused operator ", op.name(),
              " would draw its dropout mask for a part of the sequence only. Create the model with fused: false, or "
              "without dropout.");
}

void ContextTap::check_output(const char* name) const {
  TORCH_CHECK(!output_divided_ || divided(), "context parallelism: ", name,
              " after the last block of the model needs the ",
              "complete sequence, but the blocks leave it divided. Set ContextBlocks::gather.");
}

void ContextTap::check_generators() {
  if (!std::exchange(generators_checked_, true)) check_same_generators(options_.generator, group_, "context");
}

void ContextTap::check_not_repeated() const {
  check_dropout_not_repeated(options_.generator, "context parallelism", "ContextOptions::generator");
}

bool ContextTap::attention(const tap::OpRef& op, tap::Stack& stack) {
  const AttentionCall call(op.arguments(stack));
  if (call.dropout > 0) check_not_repeated();
  if (!divided()) {
    check_output("attention");
    if (call.dropout <= 0 || !options_.generator) return false;
    op.set_result(stack, attention_slice(call, {}, options_.generator));
    return true;
  }
  ContextAttentionOptions options = options_;
  options.mask = call.mask;
  options.dropout = call.dropout;
  options.causal = call.causal;
  options.scale = call.scale;
  options.grouped = call.grouped;
  if (tensor_) options.heads = tensor_->random_slice(call.query);
  op.set_result(stack, context_attention(cast_like_autocast(call.query), cast_like_autocast(call.key),
                                         cast_like_autocast(call.value), group_, options));
  return true;
}

/// Draws the mask of the complete sequence, as one process does, and uses this rank's part.
at::Tensor ContextTap::divided_dropout(const at::Tensor& x, double p) {
  const RandomSlice slice = tensor_ ? tensor_->random_slice(x) : RandomSlice{};
  const bool of_tokens = x.dim() == 3 && slice.dim == 1;  // outside of divided layers, with sequence parallelism
  const RandomSlice features = of_tokens ? RandomSlice{} : slice, tokens = of_tokens ? slice : RandomSlice{};
  TORCH_CHECK_VALUE(x.dim() >= 2 && (tokens_ == 0 || x.size(1) * tokens.ranks == tokens_),
                    "context parallelism: dropout expected this rank's tokens in dim 1",
                    tokens_ > 0 ? c10::str(" (", tokens_ / tokens.ranks, " tokens)") : std::string(),
                    ", got a tensor with sizes [", c10::Join(", ", x.sizes()), "].");
  TORCH_CHECK_VALUE(features.ranks == 1 || features.dim > 1,
                    "context parallelism: with tensor parallelism, dropout of divided features expected a tensor "
                    "[N, T, features], got one with sizes [",
                    c10::Join(", ", x.sizes()), "].");
  if (p == 1) return x * at::zeros({}, x.options());
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[1] *= group_.size() * tokens.ranks;
  const at::Tensor complete = kept_elements(sizes, x.options(), p, features, options_.generator);
  const at::Tensor kept =
      part_of_rank(complete, 1, group_.rank(), layout_).narrow(1, tokens.rank * x.size(1), x.size(1));
  return x * kept.div(1 - p);
}

bool ContextTap::dropout(const tap::OpRef& op, tap::Stack& stack) {
  const auto arguments = op.arguments(stack);
  const at::Tensor x = arguments[0].toTensor();
  const double p = arguments[1].toDouble();
  if (p <= 0 || p > 1 || !arguments[2].toBool() || x.numel() == 0) return false;
  check_generators();
  check_not_repeated();
  if (!divided()) {
    check_output("dropout");
    if (!options_.generator) return false;
    op.set_result(stack, dropout_slice(x, p, {}, options_.generator));
    return true;
  }
  op.set_result(stack, divided_dropout(x, p));
  return true;
}

}  // namespace bellows::parallel
