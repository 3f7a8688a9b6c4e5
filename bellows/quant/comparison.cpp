#include "bellows/quant/comparison.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <unordered_map>

#include "bellows/core/mutex.h"
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
    const TensorNames::Entry* const weight = call ? parameters_.find(*call->weight) : nullptr;
    const bool whole = weight && is_whole(weight->tensor, *call->weight, call->transposed);
    const auto found = whole ? errors_.find(layer_name(weight->name)) : errors_.end();
    if (found != errors_.end()) {
      Errors& errors = found->second;
      const at::Tensor quantized = errors.layer->run(*call->input, call->bias, call->convolution);
      op.next(stack);
      const at::Tensor& original = op.results(stack)[0].toTensor();
      if (errors.layer->norm.empty()) return add(errors, original, quantized);
      waiting_[original.unsafeGetTensorImpl()] = {&errors, original, quantized};
      return;
    }
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

 private:
  struct Errors {
    const QuantizedLayer* layer = nullptr;
    double signal = 0, noise = 0;
  };

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
  std::unordered_map<std::string, Errors> errors_ BELLOWS_GUARDED_BY(mutex_);               ///< by layer
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
}

}  // namespace bellows::quant
