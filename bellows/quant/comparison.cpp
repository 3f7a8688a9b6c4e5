#include "bellows/quant/comparison.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <unordered_map>

#include "bellows/core/mutex.h"
#include "bellows/quant/layer_table.h"
#include "bellows/tap/op_tap.h"

namespace bellows::quant {

namespace {

/// Runs each quantized layer in addition to the original one, and compares the results.
class Comparison : public tap::OpTap {
 public:
  Comparison(const Model& model, std::span<const QuantizedLayer> layers)
      : parameters_(model.named_parameters()), buffers_(model.named_buffers()) {
    for (const QuantizedLayer& layer : layers) errors_[layer.name] = {.layer = &layer};
  }

  void call(const tap::OpCall& op, tap::Stack& stack) override {
    const MutexLock lock(mutex_);
    const std::span<c10::IValue> arguments = op.arguments(stack);
    const auto call = layer_call(op, arguments);
    const TensorNames::Entry* const weight = call ? parameters_.find(*call->weight) : nullptr;
    const auto found = weight ? errors_.find(layer_name(weight->name)) : errors_.end();
    if (found != errors_.end()) {
      Errors& errors = found->second;
      const at::Tensor quantized = errors.layer->run(*call->input, call->bias, call->convolution);
      op.next(stack);
      if (errors.layer->norm.empty()) return add(errors, op.results(stack)[0].toTensor(), quantized);
      waiting_[errors.layer->norm] = {&errors, quantized};  // the original result is that of the norm
      return;
    }
    const at::Tensor mean = norm_in_evaluation(op, arguments);
    const TensorNames::Entry* const buffer = buffers_.find(mean);
    op.next(stack);
    if (!buffer) return;
    const auto norm = waiting_.find(buffer->name.substr(0, buffer->name.rfind('.')));
    if (norm == waiting_.end()) return;
    add(*norm->second.first, op.results(stack)[0].toTensor(), norm->second.second);
    waiting_.erase(norm);
  }

  double sqnr_of(const std::string& name) {
    const MutexLock lock(mutex_);
    const Errors& errors = errors_.at(name);
    return 10 * std::log10(errors.signal / errors.noise);
  }

 private:
  struct Errors {
    const QuantizedLayer* layer = nullptr;
    double signal = 0, noise = 0;
  };

  static void add(Errors& errors, const at::Tensor& original, const at::Tensor& quantized) {
    const at::Tensor signal = original.to(at::kDouble);
    errors.signal += signal.square().sum().item<double>();
    errors.noise += (signal - quantized.to(at::kDouble)).square().sum().item<double>();
  }

  const TensorNames parameters_, buffers_;
  Mutex mutex_;
  std::unordered_map<std::string, Errors> errors_ BELLOWS_GUARDED_BY(mutex_);                           ///< by layer
  std::unordered_map<std::string, std::pair<Errors*, at::Tensor>> waiting_ BELLOWS_GUARDED_BY(mutex_);  ///< by norm
};

}  // namespace

void compare_layers(const Model& model, std::span<const QuantizedLayer> layers, const std::vector<at::Tensor>& batch,
                    Report& report) {
  const auto comparison = std::make_shared<Comparison>(model, layers);
  {
    const EvalMode evaluation(model);
    const c10::InferenceMode normal(false);  // in inference mode, operators arrive in a different form
    const at::NoGradGuard no_gradients;
    const tap::OpTapGuard guard(comparison);
    model.forward_all(batch);
  }
  for (LayerReport& layer : report.layers) {
    if (layer.kept.empty()) layer.result_sqnr = comparison->sqnr_of(layer.name);
  }
}

}  // namespace bellows::quant
