#include "bellows/parallel/tensor/divided_dropout.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <string_view>
#include <vector>

#include "bellows/parallel/ddp/same_model.h"
#include "bellows/tap/gradient_tap.h"

namespace bellows::parallel {

at::Tensor kept_elements(at::IntArrayRef sizes, const at::TensorOptions& options, double p, const RandomSlice& slice,
                         const std::optional<at::Generator>& generator) {
  std::vector<int64_t> whole = sizes.vec();
  const int64_t length = whole[static_cast<size_t>(slice.dim)];
  whole[static_cast<size_t>(slice.dim)] = length * slice.ranks;
  return at::empty(whole, options).bernoulli_(1 - p, generator).narrow(slice.dim, slice.rank * length, length);
}

std::string generator_line(const std::optional<at::Generator>& chosen) {
  at::Generator generator = chosen ? *chosen : at::globalContext().defaultGenerator(at::Device(at::kCPU));
  if (generator.device().type() != at::kCPU) return "random generator on another device";
  at::Tensor state;
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    state = generator.get_state();
  }
  const std::string_view bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  return "random generator with state " + std::to_string(std::hash<std::string_view>()(bytes));
}

void check_same_generators(const std::optional<at::Generator>& generator, const comm::Group& group,
                           const std::string& axis) {
  if (group.size() == 1) return;
  check_same_lines(
      "the ranks' random generators have different states", "generator", {generator_line(generator)}, group,
      "All ranks of a " + axis + " axis must draw the same dropout masks. Seed them with the same number.");
}

void check_dropout_not_repeated(const std::optional<at::Generator>& generator, const char* where, const char* option) {
  TORCH_CHECK(!generator || tap::backward_id() < 0, where, ": activation checkpointing repeated a ",
              "dropout that draws its mask with ", option, ". Backward cannot draw the mask of forward again, because ",
              "checkpointing restores only libtorch's default generators. Do not set `generator`, and seed the ",
              "default generator of all ranks of the axis with the same number.");
}

at::Tensor cast_like_autocast(const at::Tensor& x) {
  const c10::DeviceType device = x.device().type();
  const bool casts = at::autocast::is_autocast_enabled(device) && x.is_floating_point();
  return casts && x.scalar_type() != at::kDouble ? x.to(at::autocast::get_autocast_dtype(device)) : x;
}

at::Tensor dropout_slice(const at::Tensor& x, double p, const RandomSlice& slice,
                         const std::optional<at::Generator>& generator) {
  if (p == 1) return x * at::zeros({}, x.options());
  // As in libtorch, the memory layout of a complete tensor determines the order of the random numbers.
  const at::Tensor kept = slice.ranks == 1 ? at::empty_like(x).bernoulli_(1 - p, generator)
                                           : kept_elements(x.sizes(), x.options(), p, slice, generator);
  return x * kept.div(1 - p);
}

AttentionCall::AttentionCall(std::span<const c10::IValue> arguments)
    : query(arguments[0].toTensor()),
      key(arguments[1].toTensor()),
      value(arguments[2].toTensor()),
      mask(arguments[3].isNone() ? at::Tensor() : arguments[3].toTensor()),
      dropout(arguments[4].toDouble()),
      causal(arguments[5].toBool()),
      grouped(arguments[7].toBool()),
      scale(arguments[6].toOptional<double>()) {}

at::Tensor attention_slice(const AttentionCall& call, const RandomSlice& slice,
                           const std::optional<at::Generator>& generator) {
  at::Tensor query = cast_like_autocast(call.query), key = cast_like_autocast(call.key);
  at::Tensor value = cast_like_autocast(call.value);
  if (call.grouped) {
    key = key.repeat_interleave(query.size(-3) / key.size(-3), -3);
    value = value.repeat_interleave(query.size(-3) / value.size(-3), -3);
  }
  const double root = std::sqrt(call.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1)))));
  at::Tensor weights = at::matmul(query * root, key.transpose(-2, -1) * root);
  at::Tensor mask = call.mask;
  if (call.causal) mask = at::ones({query.size(-2), key.size(-2)}, query.options().dtype(at::kBool)).tril();
  if (mask.defined()) {
    const double hidden = -std::numeric_limits<double>::infinity();
    weights = mask.scalar_type() == at::kBool ? weights.masked_fill(mask.logical_not(), hidden)
                                              : weights + mask.to(weights.scalar_type());
  }
  weights = at::_safe_softmax(weights, -1);
  return at::matmul(dropout_slice(weights, call.dropout, slice, generator), value);
}

}  // namespace bellows::parallel
