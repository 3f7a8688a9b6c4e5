#include "bellows/quant/calibration.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "bellows/quant/attention.h"
#include "bellows/quant/inference_guard.h"

namespace bellows::quant {

namespace {

/// Follows the operators of a model and fills the table of layers.
class Follower : public tap::OpTap {
 public:
  Follower(const Model& model, const CalibrationOptions& options)
      : parameters_(model.named_parameters()), buffers_(model.named_buffers()), options_(options) {}

  void call(const tap::OpCall& op, tap::Stack& stack) override {
    const MutexLock lock(mutex_);
    const std::span<c10::IValue> arguments = op.arguments(stack);
    const auto layer = layer_call(op, arguments);
    if (!layer && options_.finds_embeddings) {
      if (const auto rows = rows_call(op, arguments)) return read_rows(*rows, op, stack);
    }
    const TensorNames::Entry* const weight = layer ? parameters_.find(*layer->weight) : nullptr;
    const bool whole = weight && is_whole(weight->tensor, *layer->weight, layer->transposed);
    note_readers(op, arguments, whole ? layer->weight : nullptr);
    if (!whole || (!first_ && !places_.contains(layer_name(weight->name)))) {
      if (const auto attention = options_.observes_attention ? attention_call(op, arguments) : std::nullopt)
        observe_attention(*attention);
      return op.next(stack);
    }
    CalibratedLayer& seen = layer_of(*weight, *layer);
    observe(seen, *layer->input);
    op.next(stack);
    const at::Tensor& result = op.results(stack)[0].toTensor();
    if (seen.kind == LayerKind::linear) linear_results_.note(result, seen.name);
    if (seen.kind == LayerKind::convolution) results_.insert_or_assign(storage_of(result), Result{result, seen.name});
  }

  /// Params: outputs – of the model
  void end_batch(const std::vector<at::Tensor>& outputs) {
    const MutexLock lock(mutex_);
    for (const at::Tensor& output : outputs) {
      const auto result = output.defined() ? results_.find(storage_of(output)) : results_.end();
      if (result != results_.end()) read_twice_.insert(result->second.layer);
    }
    first_ = false;
    results_.clear();
    linear_results_.clear();
    sliced_.clear();
  }

  std::vector<CalibratedLayer> layers() {
    const MutexLock lock(mutex_);
    std::erase_if(layers_, [&](const CalibratedLayer& one) BELLOWS_REQUIRES(mutex_) { return is_only_sliced(one); });
    for (CalibratedLayer& layer : layers_) {
      if (layer.norm && (layer.calls > 1 || read_twice_.contains(layer.name))) layer.norm.reset();
      const auto other = other_readers_.find(layer.name);
      if (layer.kept.empty() && other != other_readers_.end())
        layer.kept = "the weight is also read by " + other->second;
      if (options_.observes && layer.kept.empty() && layer.kind != LayerKind::embedding) choose_input(layer);
      const auto result = result_observers_.find(layer.name);
      if (result != result_observers_.end()) layer.result_scale = result->second->parameters().scale;
    }
    return std::move(layers_);
  }

 private:
  struct Result {
    at::Tensor tensor;  // kept, so that its memory is not used again
    std::string layer;
    bool normed = false;  ///< whether the norm of the layer has read it
  };

  struct Rows {
    at::Tensor tensor;  // kept, so that its memory is not used again
    std::string layer;
  };

  /// The range of negative inputs is only known at the end, so convolutions are observed for both schemes.
  struct Observers {
    std::unique_ptr<Observer> affine, symmetric;
    double low = 0;
  };
  static constexpr Scheme affine{}, symmetric{.is_signed = true, .symmetric = true};

  CalibratedLayer& layer_of(const TensorNames::Entry& weight, const LayerCall& call) BELLOWS_REQUIRES(mutex_) {
    const std::string name = layer_name(weight.name);
    const auto found = places_.find(name);
    if (found != places_.end()) {
      CalibratedLayer& known = layers_[found->second];
      if (known.kind == LayerKind::embedding) {  // the linear shares its weight with an embedding
        known.kind = call.kind;
        known.bias = call.bias;
        return known;
      }
      known.calls += first_;
      known.has_one_bias = known.has_one_bias && known.bias.defined() == call.bias.defined() &&
                           (!call.bias.defined() || known.bias.is_alias_of(call.bias));
      return known;
    }
    places_[name] = layers_.size();
    layers_.push_back({.name = name,
                       .parameter = weight.name,
                       .kind = call.kind,
                       .weight = weight.tensor,
                       .bias = call.bias,
                       .kept = call.obstacle ? call.obstacle : "",
                       .calls = 1});
    if (!weight.tensor.is_cpu()) layers_.back().kept = "the weight is not on the CPU";
    return layers_.back();
  }

  /// Runs an operator that reads rows of a matrix, which is an embedding if it is a parameter.
  void read_rows(const RowsCall& call, const tap::OpCall& op, tap::Stack& stack) BELLOWS_REQUIRES(mutex_) {
    const TensorNames::Entry* const weight = parameters_.find(*call.weight);
    const bool whole = weight && is_whole(weight->tensor, *call.weight, /*transposed=*/false);
    const bool is_view = !call.indices;
    note_readers(op, op.arguments(stack), whole ? call.weight : nullptr);
    op.next(stack);
    if (!whole) return;
    const std::string name = layer_name(weight->name);
    if (!note_embedding(*weight, name)) return;
    if (!is_view) {
      looked_up_.insert(name);
      return;
    }
    // A copy, so that readers of the rows are no readers of the weight.
    const at::Tensor copy = stack.back().toTensor().clone();
    sliced_.insert_or_assign(storage_of(copy), Rows{copy, name});
    stack.back() = copy;
  }

  /// Whether the operator adds the tensor to another one, without changing it.
  static bool is_added(const tap::OpCall& op, std::span<c10::IValue> arguments, const at::Tensor& read) {
    if (op.name() == "aten::add") return true;
    return op.name() == "aten::add_" && storage_of(arguments[0].toTensor()) != storage_of(read);
  }

  /// Returns false if the weight belongs to no layer: only the first batch finds layers.
  bool note_embedding(const TensorNames::Entry& weight, const std::string& name) BELLOWS_REQUIRES(mutex_) {
    const auto found = places_.find(name);
    if (found != places_.end()) {
      layers_[found->second].reads_rows = true;
      return true;
    }
    if (!first_) return false;
    places_[name] = layers_.size();
    layers_.push_back({.name = name,
                       .parameter = weight.name,
                       .kind = LayerKind::embedding,
                       .weight = weight.tensor,
                       .kept = weight.tensor.is_cpu() ? "" : "the weight is not on the CPU",
                       .reads_rows = true,
                       .calls = 1});
    return true;
  }

  /// Whether a matrix is no embedding, because its rows are not added to something, but multiplied, for example.
  bool is_only_sliced(const CalibratedLayer& layer) const BELLOWS_REQUIRES(mutex_) {
    return layer.kind == LayerKind::embedding && other_readers_.contains(layer.name) &&
           !looked_up_.contains(layer.name);
  }

  void observe(CalibratedLayer& layer, const at::Tensor& input) BELLOWS_REQUIRES(mutex_) {
    if (options_.sees_input) options_.sees_input(layer.name, layer.kind, input);
    if (!options_.observes || input.numel() == 0) return;
    const auto [low, high] = input.detach().to(at::kFloat).aminmax();
    const double lowest = low.item<double>(), highest = high.item<double>();
    TORCH_CHECK_VALUE(std::isfinite(lowest) && std::isfinite(highest), "calibration: the input of the layer \"",
                      layer.name, "\" contains NaN or infinite values. Check the calibration data and the model.");
    Observers& seen = observers_[layer.name];
    seen.low = std::min(seen.low, lowest);
    if (!seen.affine) seen.affine = make_observer(affine, options_.observer);
    seen.affine->observe(input);
    if (layer.kind != LayerKind::convolution) return;
    if (!seen.symmetric) seen.symmetric = make_observer(symmetric, options_.observer);
    seen.symmetric->observe(input);
  }

  /// Observes the operands of attention if all of them are results of linears.
  void observe_attention(const AttentionCall& call) BELLOWS_REQUIRES(mutex_) {
    const std::string *const query = linear_results_.find(call.query), *const key = linear_results_.find(call.key),
                             *const value = linear_results_.find(call.value);
    if (!query || !key || !value) return;
    layers_[places_.at(*query)].attention = {.key = *key, .value = *value};
    const std::array<std::pair<const std::string*, const at::Tensor*>, 3> operands{
        {{query, &call.query}, {key, &call.key}, {value, &call.value}}};
    for (const auto& [layer, tensor] : operands) {
      std::unique_ptr<Observer>& observer = result_observers_[*layer];
      if (!observer) observer = make_observer(symmetric, options_.observer);
      observer->observe(*tensor);
    }
  }

  void choose_input(CalibratedLayer& layer) BELLOWS_REQUIRES(mutex_) {
    const auto found = observers_.find(layer.name);
    if (found == observers_.end()) {
      layer.kept = "calibration gave it no inputs";
      return;
    }
    layer.input_is_signed = layer.kind == LayerKind::convolution && found->second.low < 0;
    layer.input = (layer.input_is_signed ? found->second.symmetric : found->second.affine)->parameters();
  }

  /// Notes operators other than layers that read a weight, and those that read the result of a convolution.
  /// Params: own – the weight that a layer's operator may read
  void note_readers(const tap::OpCall& op, std::span<c10::IValue> arguments, const at::Tensor* own)
      BELLOWS_REQUIRES(mutex_) {
    const c10::FunctionSchema& schema = op.handle().schema();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* const alias = schema.arguments()[i].alias_info();
      if (alias && !alias->isWrite()) continue;  // a view
      if (arguments[i].isTensor()) {
        note_reader(op, arguments, arguments[i].toTensor(), own);
      } else if (arguments[i].isTensorList()) {
        for (const at::Tensor& one : arguments[i].toTensorVector()) note_reader(op, arguments, one, own);
      }
    }
  }

  void note_reader(const tap::OpCall& op, std::span<c10::IValue> arguments, const at::Tensor& read,
                   const at::Tensor* own) BELLOWS_REQUIRES(mutex_) {
    if (!read.defined()) return;
    const auto rows = sliced_.find(storage_of(read));
    if (rows != sliced_.end() && !is_added(op, arguments, read))
      other_readers_.try_emplace(rows->second.layer, op.qualified_name());
    const TensorNames::Entry* const weight = parameters_.find(read);
    if (weight && !(own && read.is_same(*own)))
      other_readers_.try_emplace(layer_name(weight->name), op.qualified_name());
    const auto result = results_.find(storage_of(read));
    if (result == results_.end()) return;
    CalibratedLayer& layer = layers_[places_.at(result->second.layer)];
    const at::Tensor mean = norm_in_evaluation(op, arguments);
    const TensorNames::Entry* const buffer = buffers_.find(mean);
    const bool same = !layer.norm || layer.norm->mean.is_same(mean);
    if (buffer && same && !result->second.normed && read.is_same(result->second.tensor)) {
      result->second.normed = true;
      if (!layer.norm) layer.norm = norm_of(*buffer, arguments);
    } else {
      read_twice_.insert(layer.name);
    }
  }

  static CalibratedLayer::Norm norm_of(const TensorNames::Entry& mean, std::span<c10::IValue> arguments) {
    const auto tensor = [&](size_t i) { return arguments[i].isTensor() ? arguments[i].toTensor() : at::Tensor(); };
    constexpr std::string_view ending = ".running_mean";
    return {.name = mean.name.substr(0, mean.name.size() - std::min(mean.name.size(), ending.size())),
            .weight = tensor(1),
            .bias = tensor(2),
            .mean = tensor(3),
            .variance = tensor(4),
            .eps = arguments[7].toDouble()};
  }

  const TensorNames parameters_, buffers_;
  const CalibrationOptions& options_;
  Mutex mutex_;
  bool first_ BELLOWS_GUARDED_BY(mutex_) = true;
  std::vector<CalibratedLayer> layers_ BELLOWS_GUARDED_BY(mutex_);
  std::unordered_map<std::string, size_t> places_ BELLOWS_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Observers> observers_ BELLOWS_GUARDED_BY(mutex_);
  std::unordered_map<const c10::StorageImpl*, Result> results_ BELLOWS_GUARDED_BY(mutex_);
  LayerResults<std::string> linear_results_ BELLOWS_GUARDED_BY(mutex_);
  std::unordered_map<const c10::StorageImpl*, Rows> sliced_ BELLOWS_GUARDED_BY(mutex_);  ///< copies of rows
  std::set<std::string> looked_up_ BELLOWS_GUARDED_BY(mutex_);  ///< layers read by aten::embedding
  /// By layer: of results that attention reads.
  std::unordered_map<std::string, std::unique_ptr<Observer>> result_observers_ BELLOWS_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::string> other_readers_ BELLOWS_GUARDED_BY(mutex_);  ///< by layer: an operator
  std::set<std::string> read_twice_ BELLOWS_GUARDED_BY(mutex_);
};

}  // namespace

std::vector<CalibratedLayer> calibrate(const Model& model, std::span<const std::vector<at::Tensor>> batches,
                                       const CalibrationOptions& options) {
  TORCH_CHECK_VALUE(!batches.empty(),
                    "calibration: expected at least one batch, got none. Pass some inputs of the model.");
  const auto follower = std::make_shared<Follower>(model, options);
  const EvalMode evaluation(model);
  const InferenceGuard inference;
  for (const std::vector<at::Tensor>& batch : batches) {
    const tap::OpTapGuard guard(follower);
    follower->end_batch(model.forward_all(batch));
  }
  return follower->layers();
}

}  // namespace bellows::quant
