#include "bellows/quant/comparison.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <unordered_map>

#include "bellows/core/mutex.h"
#include "bellows/quant/attention.h"
#include "bellows/quant/inference_guard.h"
#include "bellows/quant/layer_table.h"
#include "bellows/tap/op_tap.h"

namespace bellows::quant {

namespace {

/// Runs each quantized layer in addition to the original one, and compares the results.
class Comparison : public tap::OpTap {
 public:
  Comparison(const Model& model, std::span<const QuantizedLayer> layers) : parameters_(model.named_parameters()) {
    for (const QuantizedLayer& layer : layers) errors_[layer.name] = {.layer = &layer};
  }

  void call(const tap::OpCall& op, tap::Stack& stack) override {
    const MutexLock lock(mutex_);
    const std::span<c10::IValue> arguments = op.arguments(stack);
    const auto call = layer_call(op, arguments);
    if (!call) {
      if (const auto rows = rows_call(op, arguments)) return compare_rows(*rows, op, stack);
    }
    const TensorNames::Entry* const weight = call ? parameters_.find(*call->weight) : nullptr;
    const bool whole = weight && is_whole(weight->tensor, *call->weight, call->transposed);
    const auto found = whole ? errors_.find(layer_name(weight->name)) : errors_.end();
    if (found != errors_.end() && found->second.layer->kind != LayerKind::embedding) {
      Errors& errors = found->second;
      const at::Tensor quantized = errors.layer->run(*call->input, call->bias, call->convolution);
      op.next(stack);
      const at::Tensor& original = op.results(stack)[0].toTensor();
      if (errors.layer->result_scale.defined()) results_.note(original, errors.layer);
      if (errors.layer->norm.empty()) return add(errors, original, quantized);
      waiting_[original.unsafeGetTensorImpl()] = {&errors, original, quantized};
      return;
    }
    if (const auto attention = attention_call(op, arguments)) return compare(*attention, op, stack);
    const bool norm = norm_in_evaluation(op, arguments).defined();
    const auto waiting = norm ? waiting_.find(arguments[0].toTensor().unsafeGetTensorImpl()) : waiting_.end();
    if (waiting == waiting_.end()) return op.next(stack);
    const Waiting one = std::move(waiting->second);
    waiting_.erase(waiting);
    op.next(stack);
    add(*one.errors, op.results(stack)[0].toTensor(), one.quantized);
  }

  double sqnr_of(const std::string& name) {
    const MutexLock lock(mutex_);
    const Errors& errors = errors_.at(name);
    return decibels(errors.signal, errors.noise);
  }

  /// Params: query – name of the query's linear
  double attention_sqnr_of(const std::string& query) {
    const MutexLock lock(mutex_);
    const Errors& errors = attentions_[query];
    return decibels(errors.signal, errors.noise);
  }

 private:
  struct Errors {
    const QuantizedLayer* layer = nullptr;
    double signal = 0, noise = 0;
  };

  void compare(const AttentionCall& call, const tap::OpCall& op, tap::Stack& stack) BELLOWS_REQUIRES(mutex_) {
    const auto *const query = results_.find(call.query), *const key = results_.find(call.key),
                      *const value = results_.find(call.value);
    op.next(stack);
    if (!query || !key || !value) return;
    const at::Tensor quantized = quantized_attention({.query = call.query,
                                                      .key = call.key,
                                                      .value = call.value,
                                                      .query_scale = (*query)->result_scale,
                                                      .key_scale = (*key)->result_scale,
                                                      .value_scale = (*value)->result_scale},
                                                     call.scale);
    add(attentions_[(*query)->name], op.results(stack)[0].toTensor(), quantized);
  }

  void compare_rows(const RowsCall& call, const tap::OpCall& op, tap::Stack& stack) BELLOWS_REQUIRES(mutex_) {
    const TensorNames::Entry* const weight = parameters_.find(*call.weight);
    const bool whole = weight && is_whole(weight->tensor, *call.weight, /*transposed=*/false);
    const auto found = whole ? errors_.find(layer_name(weight->name)) : errors_.end();
    const bool reads = found != errors_.end() && found->second.layer->reads_rows;
    const at::Tensor quantized = reads ? found->second.layer->read_rows(call) : at::Tensor();
    op.next(stack);
    if (reads) add(found->second, stack.back().toTensor(), quantized);
  }

  /// A layer with a folded norm. The original result is that of the norm.
  struct Waiting {
    Errors* errors = nullptr;
    at::Tensor original, quantized;  // kept, so that no other tensor gets the address
  };

  static void add(Errors& errors, const at::Tensor& original, const at::Tensor& quantized) {
    const at::Tensor signal = original.to(at::kDouble);
    errors.signal += signal.square().sum().item<double>();
    errors.noise += (signal - quantized.to(at::kDouble)).square().sum().item<double>();
  }

  const TensorNames parameters_;
  Mutex mutex_;
  std::unordered_map<std::string, Errors> errors_ BELLOWS_GUARDED_BY(mutex_);      ///< by layer
  std::unordered_map<std::string, Errors> attentions_ BELLOWS_GUARDED_BY(mutex_);  ///< by the query's layer
  LayerResults<const QuantizedLayer*> results_ BELLOWS_GUARDED_BY(mutex_);
  std::unordered_map<const c10::TensorImpl*, Waiting> waiting_ BELLOWS_GUARDED_BY(mutex_);  ///< by the original result
};

}  // namespace

void compare_layers(const Model& model, std::span<const QuantizedLayer> layers, const std::vector<at::Tensor>& batch,
                    Report& report) {
  const auto comparison = std::make_shared<Comparison>(model, layers);
  {
    const EvalMode evaluation(model);
    const InferenceGuard inference;
    const tap::OpTapGuard guard(comparison);
    model.forward_all(batch);
  }
  for (LayerReport& layer : report.layers) {
    if (layer.kept.empty()) layer.result_sqnr = comparison->sqnr_of(layer.name);
  }
  for (AttentionReport& one : report.attentions) {
    if (one.kept.empty()) one.result_sqnr = comparison->attention_sqnr_of(one.query);
  }
}

}  // namespace bellows::quant
