#include "bellows/quant/quantized_model.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <array>
#include <cmath>
#include <functional>
#include <unordered_set>
#include <utility>

#include "bellows/core/mutex.h"
#include "bellows/quant/attention.h"
#include "bellows/quant/inference_guard.h"
#include "bellows/tap/op_tap.h"

namespace bellows::quant {

namespace {

using Layers = std::shared_ptr<const std::vector<QuantizedLayer>>;

}  // namespace

/// Finds the layers of a model by the memory of their weights and norms.
class LayerPlaces {
 public:
  LayerPlaces(Layers layers, const TensorNames& parameters, const TensorNames& buffers) : layers_(std::move(layers)) {
    std::unordered_map<std::string, at::Tensor> tensors;
    for (const TensorNames* names : {&parameters, &buffers}) {
      for (const TensorNames::Entry& entry : names->entries()) tensors.emplace(entry.name, entry.tensor);
    }
    const auto named = [&](const std::string& name, const char* kind) -> const at::Tensor& {
      const auto found = tensors.find(name);
      TORCH_CHECK_VALUE(found != tensors.end(), "quantized model: the model has no ", kind, " \"", name, "\".");
      return found->second;
    };
    for (const QuantizedLayer& layer : *layers_) {
      const at::Tensor& weight = named(layer.parameter, "parameter");
      TORCH_CHECK_VALUE(weight.sizes() == at::IntArrayRef(layer.sizes()), "quantized model: the quantized weight of \"",
                        layer.name, "\" has the shape ", at::IntArrayRef(layer.sizes()),
                        ", but the model's weight has ", weight.sizes(), ".");
      weights_[storage_of(weight)] = {&layer, weight};
      reads_rows_ = reads_rows_ || layer.reads_rows;
      quantizes_sums_ = quantizes_sums_ || layer.quantizes_sums;
      quantizes_attention_ = quantizes_attention_ || layer.result_scale.defined();
      if (!layer.norm.empty()) norms_[&layer] = storage_of(named(layer.norm + ".running_mean", "buffer"));
    }
  }

  /// Returns the layer whose whole weight the operator reads, or null.
  const QuantizedLayer* find(const LayerCall& call) const {
    const auto found = weights_.find(storage_of(*call.weight));
    if (found == weights_.end() || call.obstacle || found->second.layer->kind == LayerKind::embedding) return nullptr;
    return is_whole(found->second.weight, *call.weight, call.transposed) ? found->second.layer : nullptr;
  }
  /// Returns the layer whose whole weight the operator reads rows of, or null.
  const QuantizedLayer* find(const RowsCall& call) const {
    const auto found = reads_rows_ ? weights_.find(storage_of(*call.weight)) : weights_.end();
    if (found == weights_.end() || !found->second.layer->reads_rows) return nullptr;
    return is_whole(found->second.weight, *call.weight, /*transposed=*/false) ? found->second.layer : nullptr;
  }
  bool reads_rows() const { return reads_rows_; }
  /// Whether the tensor is the weight of a layer, perhaps under another name.
  bool is_weight(const at::Tensor& tensor) const {
    const auto found = weights_.find(storage_of(tensor));
    return found != weights_.end() && is_whole(found->second.weight, tensor, /*transposed=*/false);
  }
  /// Whether the layer contains the norm with this running mean.
  bool contains_norm(const QuantizedLayer* layer, const at::Tensor& running_mean) const {
    const auto found = norms_.find(layer);
    return found != norms_.end() && found->second == storage_of(running_mean);
  }
  bool quantizes_sums() const { return quantizes_sums_; }
  bool quantizes_attention() const { return quantizes_attention_; }
  /// Returns an empty tensor, for the second and third result of a norm that is not computed.
  const at::Tensor& no_statistics() const { return no_statistics_; }
  /// Throws: c10::ValueError if a weight has moved to other memory, so that it is no longer found
  void check() const {
    for (const auto& [storage, place] : weights_) {
      TORCH_CHECK_VALUE(storage_of(place.weight) == storage, "quantized model: the weight of \"", place.layer->name,
                        "\" was replaced after quantization, for example by to(). Quantize the model again.");
    }
  }

 private:
  struct Place {
    const QuantizedLayer* layer = nullptr;
    at::Tensor weight;
  };
  Layers layers_;
  bool reads_rows_ = false, quantizes_sums_ = false, quantizes_attention_ = false;
  at::Tensor no_statistics_ = at::empty({0});
  std::unordered_map<const c10::StorageImpl*, Place> weights_;
  std::unordered_map<const QuantizedLayer*, const c10::StorageImpl*> norms_;  ///< by layer: memory of a running mean
};

namespace {

/// Whether the operator adds two tensors. Comparing handles is faster than comparing names.
bool is_sum(const tap::OpRef& op) {
  static const auto* const sums =
      new std::array<c10::OperatorHandle, 2>{c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor"),
                                             c10::Dispatcher::singleton().findSchemaOrThrow("aten::add_", "Tensor")};
  return op.handle() == (*sums)[0] || op.handle() == (*sums)[1];
}

/// The inputs of convolutions whose sums read 8-bit values, in one call of the model.
/// Threads: not thread-safe
class SumOperands {
 public:
  void note(const at::Tensor& input, const QuantizedLayer& layer) {
    inputs_.try_emplace(input.unsafeGetTensorImpl(), Input{Weak(input.getIntrusivePtr()), &layer});
  }

  /// Replaces operands of a sum by their 8-bit values.
  void replace(std::span<c10::IValue> arguments, bool in_place) const {
    const at::Tensor first = arguments[0].toTensor(), second = arguments[1].toTensor();
    if (!first.sizes().equals(second.sizes())) return;
    if (const QuantizedLayer* const layer = in_place ? nullptr : find(first)) arguments[0] = rounded(first, *layer);
    if (const QuantizedLayer* const layer = find(second)) arguments[1] = rounded(second, *layer);
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Input {
    Weak tensor;  // so that no other tensor gets its address, but its memory can be freed
    const QuantizedLayer* layer;
  };

  const QuantizedLayer* find(const at::Tensor& tensor) const {
    const auto found = inputs_.find(tensor.unsafeGetTensorImpl());
    return found == inputs_.end() ? nullptr : found->second.layer;
  }
  static at::Tensor rounded(const at::Tensor& x, const QuantizedLayer& layer) {
    const at::Tensor values = dequantize_activations(layer.quantized_input(x));
    return x.scalar_type() == at::kFloat ? values : values.to(x.scalar_type());
  }

  std::unordered_map<const c10::TensorImpl*, Input> inputs_;
};

/// Lets composite operators arrive at taps whole while it lives, as in inference mode, but tensors stay normal ones. Linears
/// and norms then take one call each, instead of one for each operator and view that they consist of.
class WholeOperators {
 public:
  static bool is_composite(const tap::OpRef& op) {
    return op.handle().hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  }

 private:
  at::AutoDispatchBelowAutograd below_;
};

bool is_batch_norm_in_evaluation(const tap::OpRef& op, std::span<c10::IValue> arguments) {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::batch_norm", "");
  return op.handle() == handle && arguments[3].isTensor() && !arguments[5].toBool();
}

/// Runs quantized layers instead of the operators that read their weights, in one call of the model.
class Execution : public tap::OpTap, public std::enable_shared_from_this<Execution> {
 public:
  explicit Execution(const LayerPlaces& places) : places_(places) {}

  /// Calls the model's operators on this thread.
  /// Params: run – calls the model
  void run(const std::function<void()>& run) {
    const tap::OpTapGuard guard(shared_from_this());
    decomposed_ = c10::impl::tls_local_dispatch_key_set();
    const WholeOperators whole;
    run();
  }

  void call(const tap::OpCall& op, tap::Stack& stack) override {
    const std::span<c10::IValue> arguments = op.arguments(stack);
    if (const auto call = layer_call(op, arguments)) {
      const QuantizedLayer* const layer = places_.find(*call);
      if (!layer) return other(op, stack);
      const at::Tensor result = layer->run(*call->input, call->bias, call->convolution);
      if (layer->quantizes_sums) note_input(*layer, *call->input);
      if (layer->result_scale.defined()) note_result(*layer, result);
      if (!layer->norm.empty()) note(*layer, result);
      return put(stack, arguments.size(), {result});
    }
    if (places_.reads_rows()) {
      const auto rows = rows_call(op, arguments);
      if (const QuantizedLayer* const layer = rows ? places_.find(*rows) : nullptr)
        return put(stack, arguments.size(), {layer->read_rows(*rows)});
    }
    if (places_.quantizes_sums() && is_sum(op)) return sum(op, stack);
    if (is_batch_norm_in_evaluation(op, arguments)) {
      const at::Tensor x = arguments[0].toTensor();
      return was_applied(arguments[3].toTensor(), x) ? put(stack, arguments.size(), {x}) : other(op, stack);
    }
    const at::Tensor mean = norm_in_evaluation(op, arguments);
    if (!mean.defined() || !was_applied(mean, arguments[0].toTensor())) return other(op, stack);
    const at::Tensor x = arguments[0].toTensor();
    put(stack, arguments.size(), {x, places_.no_statistics(), places_.no_statistics()});
  }

  /// Throws: c10::ValueError if a layer contains a norm that the model did not apply to its result
  void end() {
    const MutexLock lock(mutex_);
    TORCH_CHECK_VALUE(waiting_.empty(), "quantized model: the layer \"", waiting_.begin()->second.first->name,
                      "\" was quantized together with the norm \"", waiting_.begin()->second.first->norm,
                      "\", but this call does not apply the norm to its result. Set `fold_norms` to false.");
  }

 private:
  static void put(tap::Stack& stack, size_t arguments, std::initializer_list<at::Tensor> results) {
    stack.resize(stack.size() - arguments);
    for (const at::Tensor& result : results) stack.emplace_back(result);
  }

  void note_result(const QuantizedLayer& layer, const at::Tensor& result) {
    const MutexLock lock(mutex_);
    results_.note(result, &layer);
  }

  /// Returns the operands of attention with their scales if all of them are results of layers that have one.
  std::optional<AttentionOperands> attention_operands(const AttentionCall& call) {
    const MutexLock lock(mutex_);
    const auto *const query = results_.find(call.query), *const key = results_.find(call.key),
                      *const value = results_.find(call.value);
    if (!query || !key || !value) return {};
    return AttentionOperands{.query = call.query,
                             .key = call.key,
                             .value = call.value,
                             .query_scale = (*query)->result_scale,
                             .key_scale = (*key)->result_scale,
                             .value_scale = (*value)->result_scale};
  }

  /// Runs an operator that is no layer. The operators of a composite one arrive here.
  void other(const tap::OpCall& op, tap::Stack& stack) {
    const std::span<c10::IValue> arguments = op.arguments(stack);
    if (const auto call = places_.quantizes_attention() ? attention_call(op, arguments) : std::nullopt) {
      if (const auto operands = attention_operands(*call))
        return put(stack, arguments.size(), {quantized_attention(*operands, call->scale), places_.no_statistics()});
    }
    if (decomposes_ || !WholeOperators::is_composite(op)) return op.next(stack);
    struct Decomposes {
      Decomposes() { decomposes_ = true; }
      ~Decomposes() { decomposes_ = false; }
    } const until_the_end;
    const c10::impl::ForceDispatchKeyGuard keys(decomposed_);
    const tap::OpTapGuard guard(shared_from_this());
    op.next(stack);
  }

  void note_input(const QuantizedLayer& layer, const at::Tensor& input) {
    const MutexLock lock(mutex_);
    sum_operands_.note(input, layer);
  }

  void sum(const tap::OpCall& op, tap::Stack& stack) {
    {
      const MutexLock lock(mutex_);
      sum_operands_.replace(op.arguments(stack), op.name() == "aten::add_");
    }
    op.next(stack);
  }

  void note(const QuantizedLayer& layer, const at::Tensor& result) {
    const MutexLock lock(mutex_);
    waiting_[result.unsafeGetTensorImpl()] = {&layer, result};
  }

  /// Whether the layer that has computed `x` has also applied the norm with this running mean.
  bool was_applied(const at::Tensor& running_mean, const at::Tensor& x) {
    const MutexLock lock(mutex_);
    const auto found = waiting_.find(x.unsafeGetTensorImpl());
    if (found == waiting_.end() || !places_.contains_norm(found->second.first, running_mean)) return false;
    waiting_.erase(found);
    return true;
  }

  /// Whether this thread is in a composite operator, so that operators arrive decomposed.
  static thread_local bool decomposes_;

  const LayerPlaces& places_;
  c10::impl::LocalDispatchKeySet decomposed_{{}};  ///< with which composite operators arrive decomposed
  Mutex mutex_;
  /// Results of layers whose norm has not been called yet. They are kept, so that no other tensor gets their address.
  std::unordered_map<const c10::TensorImpl*, std::pair<const QuantizedLayer*, at::Tensor>> waiting_
      BELLOWS_GUARDED_BY(mutex_);
  SumOperands sum_operands_ BELLOWS_GUARDED_BY(mutex_);
  LayerResults<const QuantizedLayer*> results_ BELLOWS_GUARDED_BY(mutex_);  ///< those with a scale
};

thread_local bool Execution::decomposes_ = false;

/// Replaces weights by one row of NaN in the same shape. If an operator reads one by mistake, its result is NaN, too.
void release(const TensorNames& parameters, const std::vector<QuantizedLayer>& layers) {
  std::unordered_set<std::string> names;
  for (const QuantizedLayer& layer : layers) names.insert(layer.parameter);
  for (const TensorNames::Entry& entry : parameters.entries()) {
    if (!names.contains(entry.name)) continue;
    entry.tensor.unsafeGetTensorImpl()->set_requires_grad(false);
    at::Tensor tensor = entry.tensor;
    std::vector<int64_t> row = entry.tensor.sizes().vec();  // so that a transposed weight still has other strides
    row.front() = 1;
    tensor.set_data(at::full(row, NAN, entry.tensor.options()).expand(entry.tensor.sizes()));
  }
}

}  // namespace

QuantizedModel::QuantizedModel(const Model& model, std::vector<QuantizedLayer> layers, bool release_weights)
    : ModelWrapper(model) {
  for (QuantizedLayer& layer : layers) layer.pack();
  layers_ = std::make_shared<const std::vector<QuantizedLayer>>(std::move(layers));
  model.eval();
  const TensorNames parameters(model.named_parameters()), buffers(model.named_buffers());
  if (release_weights) release(parameters, *layers_);
  places_ = std::make_unique<const LayerPlaces>(layers_, TensorNames(model.named_parameters()), buffers);
}

QuantizedModel::~QuantizedModel() = default;

std::vector<at::Tensor> QuantizedModel::forward_all(const std::vector<at::Tensor>& inputs) {
  TORCH_CHECK_VALUE(!inner().training(),
                    "quantized model: the original model is in training mode. Call eval() on it before this call.");
  places_->check();
  const InferenceGuard inference;
  std::vector<at::Tensor> normal = inputs;
  for (at::Tensor& input : normal) {
    if (input.defined() && input.is_inference()) input = input.clone();  // the model may change it in place
  }
  const auto execution = std::make_shared<Execution>(*places_);
  std::vector<at::Tensor> outputs;
  execution->run([&] { outputs = inner().forward_all(normal); });
  execution->end();
  return outputs;
}

NamedTensors QuantizedModel::named_parameters() const {
  std::unordered_set<std::string> quantized;
  for (const QuantizedLayer& layer : *layers_) quantized.insert(layer.parameter);
  NamedTensors left = inner().named_parameters();
  std::erase_if(left, [&](const auto& one) { return quantized.contains(one.first) || places_->is_weight(one.second); });
  return left;
}

NamedTensors QuantizedModel::named_buffers() const {
  NamedTensors all = inner().named_buffers();
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) all.emplace_back(name, tensor);
  };
  for (const QuantizedLayer& layer : *layers_) {
    const std::string prefix = tensor_prefix(layer.parameter);
    if (layer.rows.values.defined()) {
      add(layer.parameter + "_rows", layer.rows.values);
      add(layer.parameter + "_row_scales", layer.rows.scales);
      add(layer.parameter + "_row_zero_points", layer.rows.zero_points);
    }
    if (layer.packed.data.defined()) {
      add(layer.parameter + "_packed", layer.packed.data);
    } else if (layer.kind != LayerKind::embedding) {
      add(layer.parameter, layer.weight.values);
      add(layer.parameter + "_scale", layer.weight.parameters.scale);
      if (layer.weight.scheme.has_zero_points())
        add(layer.parameter + "_zero_point", layer.weight.parameters.zero_point);
    }
    add(prefix + "input_scale", layer.input.scale);
    add(prefix + "input_zero_point", layer.input.zero_point);
    add(prefix + "bias_replacement", layer.bias);
    add(prefix + "result_scale", layer.result_scale);
    add(prefix + "input_divisors", layer.divisors);
    add(prefix + "input_order", layer.input_order);
  }
  return all;
}

void QuantizedModel::set_training(bool on) {
  TORCH_CHECK_VALUE(
      !on,
      "quantized model: it cannot be trained, because its weights are integers. Train the original model, "
      "then quantize it.");
}

void QuantizedModel::to(c10::Device device) {
  TORCH_CHECK_VALUE(device.is_cpu(), "quantized model: expected the device cpu, got ", device.str(), ".");
}

void QuantizedModel::to(c10::ScalarType dtype) {
  TORCH_CHECK_VALUE(false, "quantized model: it cannot be cast to ", c10::toString(dtype),
                    ". Cast the original model, then quantize it.");
}

void load_unquantized(const Model& model, const NamedTensors& tensors, const std::vector<QuantizedLayer>& layers,
                      const std::string& where) {
  LoadReport report = load_state_dict(model, tensors, /*strict=*/false);
  const TensorNames weights(model.named_parameters());
  std::unordered_set<std::string> quantized;
  for (const QuantizedLayer& layer : layers) quantized.insert(layer.parameter);
  for (const auto& [name, tensor] : model.named_parameters()) {
    const TensorNames::Entry* const weight = weights.find(tensor);  // has another name if two parameters are one tensor
    if (weight && quantized.contains(weight->name) && is_whole(weight->tensor, tensor, /*transposed=*/false))
      std::erase(report.missing, name);
  }
  for (const std::string& name : quantized) std::erase(report.missing, name);
  TORCH_CHECK_VALUE(report.complete(), where, " does not match the model.\n", report.to_string());
}

}  // namespace bellows::quant
