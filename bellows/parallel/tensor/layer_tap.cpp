#include "bellows/parallel/tensor/layer_tap.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "bellows/parallel/tensor/cross_entropy.h"
#include "bellows/parallel/tensor/divided_dropout.h"
#include "bellows/parallel/tensor/exchange.h"
#include "bellows/parallel/tensor/kept_slices.h"
#include "bellows/tap/gradient_tap.h"

namespace bellows::parallel {

namespace {

using Cut = TensorStyle::Cut;

/// Operators that may read a divided weight: layers, and views.
constexpr std::string_view allowed_readers[] = {
    "aten::linear",    "aten::addmm",      "aten::mm",     "aten::matmul", "aten::embedding",       "aten::t",
    "aten::transpose", "aten::slice",      "aten::narrow", "aten::view",   "aten::view_as",         "aten::alias",
    "aten::detach",    "aten::as_strided", "aten::chunk",  "aten::split",  "aten::split_with_sizes"};
/// Autocast casts weights inside of the layers.
constexpr std::string_view casts[] = {"aten::to", "aten::_to_copy", "aten::_autocast_to_reduced_precision",
                                      "aten::_autocast_to_full_precision"};

template <size_t count>
bool is_one_of(std::string_view name, const std::string_view (&names)[count]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

at::Tensor tensor_or_none(const c10::IValue& value) {
  return value.isNone() ? at::Tensor() : value.toTensor();
}

std::optional<at::Tensor> as_optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// In backward, gradients are computed with the same operators, but without recording. Recomputed forward passes record.
bool computes_gradients() {
  return tap::backward_id() >= 0 && !c10::GradMode::is_enabled();
}

}  // namespace

LayerTap::LayerTap(comm::Group group, std::vector<TensorCut> cuts, std::optional<at::Generator> generator)
    : group_(std::move(group)), generator_(std::move(generator)) {
  for (TensorCut& cut : cuts) add({std::move(cut)});
}

void LayerTap::add(Layer layer) {
  const at::Tensor& parameter = layer.cut.parameter;
  // Biases are not recognized. A freed parameter has one dim, too.
  if (layer.cut.sizes.size() < 2 || parameter.dim() < 2) return;
  layer.begin = parameter.storage_offset();
  layer.end = layer.begin + parameter.numel();
  layers_[parameter.storage().unsafeGetStorageImpl()].push_back(std::move(layer));
}

/// Whether all parameters are still where they were.
bool LayerTap::is_current() const {
  return std::all_of(layers_.begin(), layers_.end(), [](const auto& entry) {
    return std::all_of(entry.second.begin(), entry.second.end(), [&](const Layer& layer) {
      const at::Tensor& parameter = layer.cut.parameter;
      return parameter.storage().unsafeGetStorageImpl() == entry.first && parameter.storage_offset() == layer.begin &&
             parameter.dim() > 1;
    });
  });
}

LayerTap::Layer* LayerTap::layer_of(const c10::IValue& weight) {
  if (!weight.isTensor()) return nullptr;
  const at::Tensor& tensor = weight.toTensor();
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const auto found = layers_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == layers_.end()) return nullptr;
  const int64_t offset = tensor.storage_offset();
  const auto has = [&](const Layer& layer) {
    const bool is_empty = layer.begin == layer.end;  // the rank has no row of a small vocabulary
    return layer.begin <= offset && (is_empty ? tensor.numel() == 0 && offset == layer.begin : offset < layer.end);
  };
  const auto layer = std::find_if(found->second.begin(), found->second.end(), has);
  return layer == found->second.end() ? nullptr : &*layer;
}

void LayerTap::reset() {
  copied_ = {};
  inside_ = sequence_ = false;
  if (is_current()) return;
  logits_ = nullptr;
  for (auto& [storage, layers] : std::exchange(layers_, {})) {
    for (Layer& layer : layers) add(std::move(layer));
  }
}

void LayerTap::check_all_used() const {
  for (const auto& [storage, layers] : layers_) {
    for (const Layer& layer : layers) {
      TORCH_CHECK(layer.used, "tensor parallelism: no linear, matmul or embedding has read the divided parameter \"",
                  layer.cut.name, "\" in the first forward pass, so its layer would compute wrong results. Leave it ",
                  "out of the plan.");
    }
  }
}

void LayerTap::check(const tap::OpRef& op, tap::Stack& stack) {
  const std::string_view name = op.name();
  if (computing_ || is_one_of(name, allowed_readers)) return;
  TORCH_CHECK(!sequence_ || !name.starts_with("bellows::"), "tensor parallelism: the fused operator ", name,
              " does not support sequence parallelism. Create the model with fused: false.");
  const auto check_argument = [&](const c10::IValue& argument) {
    const Layer* layer = layer_of(argument);
    if (!layer) return;
    if (is_one_of(name, casts) && at::autocast::is_autocast_enabled(argument.toTensor().device().type())) return;
    TORCH_CHECK(false, "tensor parallelism: ", name, " reads the parameter \"", layer->cut.name,
                "\", of which each rank has only a part. Only linear, matmul, mm, addmm and embedding support divided "
                "weights. Leave the parameter out of the plan.");
  };
  for (const c10::IValue& argument : op.arguments(stack)) {
    if (!argument.isList()) {
      check_argument(argument);
      continue;
    }
    for (const c10::IValue& element : argument.toListRef()) check_argument(element);
  }
}

bool LayerTap::compute(const tap::OpRef& op, tap::Stack& stack) {
  if (group_.size() == 1 && !generator_) return false;
  const std::string_view name = op.name();
  struct Computing {
    explicit Computing(bool& flag) : on(flag), before(std::exchange(flag, true)) {}
    ~Computing() { on = before; }
    bool& on;
    const bool before;
  } const computing(computing_);
  if (name == "aten::dropout") return dropout(op, stack);
  if (name == "aten::scaled_dot_product_attention") return attention(op, stack);
  if (group_.size() == 1 || computes_gradients()) return false;
  if (name == "aten::embedding") return embedding(op, stack);
  if (name == "aten::cross_entropy_loss") return cross_entropy(op, stack);
  if (name == "aten::layer_norm") return layer_norm(op, stack);
  return linear(op, stack);
}

/// The input of a column layer, which every rank needs completely.
LayerTap::Copied LayerTap::column_input(const at::Tensor& x) {
  const auto copy = [&] { return sequence_ ? gather_slices(x, 1, /*add=*/true, group_) : add_gradients(x, group_); };
  if (!c10::GradMode::is_enabled() || !x.requires_grad()) return {x, copy()};
  const auto version = static_cast<int64_t>(x._version());
  for (const Copied& known : copied_) {
    if (known.input.is_same(x) && known.version == version) return known;
  }
  Copied& place = copied_[next_copied_++ % copied_.size()];
  place = {x, copy(), version};
  // If a client is installed, such as one that offloads, it receives the gathered tensor.
  if (sequence_ && group_.size() > 1 && !tap::saved_tensor_tap_installed() && !tap::foreign_autograd_engine())
    place.slices = keep_slices(x, place.result, 1, group_);
  return place;
}

/// The input of a row layer. It usually comes from a column layer, so it is divided already.
at::Tensor LayerTap::row_input(const at::Tensor& x, const at::Tensor& weight, const Layer& layer) const {
  const bool complete = x.size(-1) == weight.size(1) * group_.size();
  TORCH_CHECK_VALUE(x.size(-1) == weight.size(1) || complete, "tensor parallelism: the row layer of \"", layer.cut.name,
                    "\" expected an input with ", weight.size(1), " features, one of ", group_.size(),
                    " slices, or with all ", weight.size(1) * group_.size(), " features, got ", x.size(-1), ".");
  return complete ? take_slice(x, -1, group_) : x;
}

at::Tensor LayerTap::row_output(const at::Tensor& partial, const at::Tensor& bias) const {
  const at::Tensor y = sequence_ ? add_and_slice(partial, 1, group_) : add_outputs(partial, group_);
  if (!bias.defined()) return y;
  const at::Tensor term = sequence_ ? add_gradients(bias, group_) : bias;
  return y + term.to(y.scalar_type());
}

at::Tensor LayerTap::divided_linear(Layer& layer, const at::Tensor& x, const at::Tensor& weight,
                                    const at::Tensor& bias) {
  layer.used = true;
  if (layer.cut.style.cut == Cut::row) {
    const at::Tensor own = row_input(x, weight, layer);
    // Before linear, because the second run of a checkpointed function may end there.
    inside_ = false;
    if (tap::backward_id() >= 0) copied_ = {};
    return row_output(at::linear(own, weight), bias);
  }
  inside_ = layer.cut.style.cut == Cut::column;
  if (!inside_) logits_ = &layer;
  const Copied input = column_input(x);
  std::optional<tap::SavedTensorGuard> guard;
  if (input.slices) guard.emplace(input.slices);
  return at::linear(input.result, weight, as_optional(bias));
}

bool LayerTap::linear(const tap::OpRef& op, tap::Stack& stack) {
  const auto arguments = op.arguments(stack);
  const std::string_view name = op.name();
  const bool with_bias_first = name == "aten::addmm";
  if (name != "aten::linear" && name != "aten::mm" && name != "aten::matmul" && !with_bias_first) return false;
  const size_t at = with_bias_first ? 1 : 0;
  Layer* layer = layer_of(arguments[at + 1]);
  if (!layer) {
    const Layer* first = layer_of(arguments[at]);
    TORCH_CHECK(!first, "tensor parallelism: ", name, " reads the divided parameter \"", first ? first->cut.name : "",
                "\" as its left operand. Only the right operand may be divided. Leave the parameter out of the plan.");
    return false;
  }
  const at::Tensor x = arguments[at].toTensor(), factor = arguments[at + 1].toTensor();
  at::Tensor bias;
  if (name == "aten::linear") bias = tensor_or_none(arguments[2]);
  if (with_bias_first) {
    TORCH_CHECK(arguments[3].toScalar().to<double>() == 1 && arguments[4].toScalar().to<double>() == 1,
                "tensor parallelism: addmm with alpha or beta other than 1 reads the divided parameter \"",
                layer->cut.name, "\". Leave the parameter out of the plan.");
    bias = arguments[0].toTensor();
  }
  op.set_result(stack, divided_linear(*layer, x, name == "aten::linear" ? factor : factor.t(), bias));
  return true;
}

at::Tensor LayerTap::divided_embedding(const Layer& layer, std::span<const c10::IValue> arguments) {
  TORCH_CHECK(layer.cut.style.cut == Cut::vocabulary, "tensor parallelism: an embedding reads \"", layer.cut.name,
              "\", which the plan divides by ", to_string(layer.cut.style), ". Use the style vocabulary.");
  TORCH_CHECK(!arguments[3].toBool() && !arguments[4].toBool(), "tensor parallelism: the embedding of \"",
              layer.cut.name,
              "\" uses scale_grad_by_freq or sparse gradients, which a divided table does not "
              "support. Leave it out of the plan.");
  const auto [first, count] = layer.cut.ranges(group_.rank(), group_.size()).front();
  const at::Tensor position = arguments[1].toTensor() - first;
  const at::Tensor foreign = position.lt(0).logical_or(position.ge(count));
  const int64_t padding = arguments[2].toInt() - first;
  const bool own_padding = arguments[2].toInt() >= 0 && padding >= 0 && padding < count;
  const at::Tensor rows =
      at::embedding(arguments[0].toTensor(), position.masked_fill(foreign, 0), own_padding ? padding : -1);
  return add_outputs(rows.masked_fill(foreign.unsqueeze(-1), 0), group_);
}

bool LayerTap::embedding(const tap::OpRef& op, tap::Stack& stack) {
  const auto arguments = op.arguments(stack);
  Layer* layer = layer_of(arguments[0]);
  if (!layer) return false;
  layer->used = true;
  inside_ = false;
  op.set_result(stack, divided_embedding(*layer, arguments));
  return true;
}

void LayerTap::check_generators() {
  if (!std::exchange(generators_checked_, true)) check_same_generators(generator_, group_, "tensor");
}

void LayerTap::check_not_repeated() const {
  check_dropout_not_repeated(generator_, "tensor parallelism", "TensorOptions::generator");
}

RandomSlice LayerTap::random_slice(const at::Tensor& x) const {
  if (inside_) return {x.dim() >= 4 ? 1 : x.dim() - 1, group_.rank(), group_.size()};
  return sequence_ ? RandomSlice{1, group_.rank(), group_.size()} : RandomSlice{};
}

bool LayerTap::dropout(const tap::OpRef& op, tap::Stack& stack) {
  const auto arguments = op.arguments(stack);
  const at::Tensor x = arguments[0].toTensor();
  const double p = arguments[1].toDouble();
  if (p <= 0 || p > 1 || !arguments[2].toBool() || x.numel() == 0) return false;
  check_generators();
  const RandomSlice slice = random_slice(x);
  if (masks_left_ || (slice.ranks == 1 && !generator_)) return false;
  check_not_repeated();
  op.set_result(stack, dropout_slice(x, p, slice, generator_));
  return true;
}

bool LayerTap::attention(const tap::OpRef& op, tap::Stack& stack) {
  const AttentionCall call(op.arguments(stack));
  if (call.dropout <= 0 || call.query.numel() == 0) return false;
  check_generators();
  RandomSlice slice;
  if (inside_) slice = {call.query.dim() - 3, group_.rank(), group_.size()};
  if (masks_left_ || (slice.ranks == 1 && !generator_)) return false;
  check_not_repeated();
  op.set_result(stack, attention_slice(call, slice, generator_));
  return true;
}

/// A norm of a slice of the sequence: the gradients of its parameters are sums over the ranks.
bool LayerTap::layer_norm(const tap::OpRef& op, tap::Stack& stack) const {
  if (!sequence_ || inside_) return false;
  const auto arguments = op.arguments(stack);
  const auto summed = [&](const c10::IValue& parameter) {
    const at::Tensor tensor = tensor_or_none(parameter);
    return tensor.defined() ? std::optional(add_gradients(tensor, group_)) : std::nullopt;
  };
  op.set_result(stack, at::layer_norm(arguments[0].toTensor(), arguments[1].toIntVector(), summed(arguments[2]),
                                      summed(arguments[3]), arguments[4].toDouble(), arguments[5].toBool()));
  return true;
}

bool LayerTap::cross_entropy(const tap::OpRef& op, tap::Stack& stack) const {
  const auto arguments = op.arguments(stack);
  at::Tensor logits = arguments[0].toTensor();
  const at::Tensor target = arguments[1].toTensor();
  const int64_t dim = logits.dim() > 1 ? 1 : 0;
  if (!logits_ || target.is_floating_point()) return false;
  if (logits.size(dim) != logits_->cut.ranges(group_.rank(), group_.size()).front().second) return false;
  TORCH_CHECK(arguments[2].isNone(),
              "tensor parallelism: cross-entropy with class weights does not support divided "
              "logits. Compute the loss without weights, or leave the vocabulary out of the plan.");
  const int64_t reduction = arguments[3].toInt();
  const TensorCrossEntropyOptions options{.label_smoothing = arguments[5].toDouble(),
                                          .ignore_index = arguments[4].toInt(),
                                          .reduction = reduction == 0   ? nn::Reduction::none
                                                       : reduction == 1 ? nn::Reduction::mean
                                                                        : nn::Reduction::sum};
  if (logits.dim() > 2) logits = logits.movedim(1, -1);
  const at::Tensor loss = parallel::cross_entropy(logits, target, logits_->cut.sizes[0], group_, options);
  const bool wide = at::autocast::is_autocast_enabled(logits.device().type());
  op.set_result(stack, wide ? loss : loss.to(logits.scalar_type()));
  return true;
}

}  // namespace bellows::parallel
