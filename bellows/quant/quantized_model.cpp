#include "bellows/quant/quantized_model.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <unordered_set>
#include <utility>

namespace bellows::quant {

namespace {

using Layers = std::shared_ptr<const std::vector<QuantizedLayer>>;

/// Runs quantized layers instead of the operators that read their weights.
class Execution : public tap::OpTap {
 public:
  struct Place {
    at::Tensor weight;
    size_t layer;
  };

  Execution(Layers layers, const TensorNames& parameters, const TensorNames& buffers) : layers_(std::move(layers)) {
    std::unordered_map<std::string, size_t> places;
    for (const TensorNames::Entry& entry : parameters.entries()) places.emplace(entry.name, places.size());
    std::unordered_set<std::string> norms;
    for (size_t i = 0; i < layers_->size(); ++i) {
      const QuantizedLayer& layer = (*layers_)[i];
      const auto found = places.find(layer.parameter);
      TORCH_CHECK_VALUE(found != places.end(), "quantized model: the model has no parameter \"", layer.parameter,
                        "\".");
      const at::Tensor& weight = parameters.entries()[found->second].tensor;
      TORCH_CHECK_VALUE(weight.sizes() == at::IntArrayRef(layer.sizes()), "quantized model: the quantized weight of \"",
                        layer.name, "\" has the shape ", at::IntArrayRef(layer.sizes()),
                        ", but the model's weight has ", weight.sizes(), ".");
      weights_[weight.storage().unsafeGetStorageImpl()] = {weight, i};
      if (!layer.norm.empty()) norms.insert(layer.norm + ".running_mean");
    }
    for (const TensorNames::Entry& entry : buffers.entries()) {
      if (norms.erase(entry.name) > 0) norms_.insert(entry.tensor.storage().unsafeGetStorageImpl());
    }
    TORCH_CHECK_VALUE(norms.empty(), "quantized model: the model has no buffer \"", *norms.begin(), "\".");
  }

  void call(const tap::OpCall& op, tap::Stack& stack) override {
    const std::span<c10::IValue> arguments = op.arguments(stack);
    if (const auto call = layer_call(op, arguments)) {
      const auto found = weights_.find(call->weight->storage().unsafeGetStorageImpl());
      if (found == weights_.end()) return op.next(stack);
      const at::Tensor result = (*layers_)[found->second.layer].run(*call->input, call->bias, call->convolution);
      return put(stack, arguments.size(), {result});
    }
    const at::Tensor mean = norms_.empty() ? at::Tensor() : norm_in_evaluation(op, arguments);
    if (!mean.defined() || !norms_.contains(mean.storage().unsafeGetStorageImpl())) return op.next(stack);
    const at::Tensor x = arguments[0].toTensor();  // the layer before has computed the norm
    put(stack, arguments.size(), {x, at::empty({0}, x.options()), at::empty({0}, x.options())});
  }

 private:
  static void put(tap::Stack& stack, size_t arguments, std::initializer_list<at::Tensor> results) {
    stack.resize(stack.size() - arguments);
    for (const at::Tensor& result : results) stack.emplace_back(result);
  }

  Layers layers_;
  std::unordered_map<const c10::StorageImpl*, Place> weights_;
  std::unordered_set<const c10::StorageImpl*> norms_;  ///< running means of norms that were folded into layers
};

/// Replaces weights by a single NaN in the same shape. If an operator reads one by mistake, its result is NaN, too.
void release(const TensorNames& parameters, const std::vector<QuantizedLayer>& layers) {
  std::unordered_set<std::string> names;
  for (const QuantizedLayer& layer : layers) names.insert(layer.parameter);
  for (const TensorNames::Entry& entry : parameters.entries()) {
    if (!names.contains(entry.name)) continue;
    entry.tensor.unsafeGetTensorImpl()->set_requires_grad(false);
    at::Tensor tensor = entry.tensor;
    tensor.set_data(at::full({1}, NAN, entry.tensor.options()).expand(entry.tensor.sizes()));
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
  tap_ = std::make_shared<Execution>(layers_, TensorNames(model.named_parameters()), buffers);
}

std::vector<at::Tensor> QuantizedModel::forward_all(const std::vector<at::Tensor>& inputs) {
  const c10::InferenceMode normal(false);  // in inference mode, operators arrive in a different form
  const at::NoGradGuard no_gradients;
  const tap::OpTapGuard guard(tap_);
  return inner().forward_all(inputs);
}

NamedTensors QuantizedModel::named_parameters() const {
  std::unordered_set<std::string> quantized;
  for (const QuantizedLayer& layer : *layers_) quantized.insert(layer.parameter);
  NamedTensors left = inner().named_parameters();
  std::erase_if(left, [&](const auto& one) { return quantized.contains(one.first); });
  return left;
}

NamedTensors QuantizedModel::named_buffers() const {
  NamedTensors all = inner().named_buffers();
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) all.emplace_back(name, tensor);
  };
  for (const QuantizedLayer& layer : *layers_) {
    const std::string prefix = tensor_prefix(layer.parameter);
    if (layer.packed.data.defined()) {
      add(layer.parameter + "_packed", layer.packed.data);
    } else {
      add(layer.parameter, layer.weight.values);
      add(layer.parameter + "_scale", layer.weight.parameters.scale);
      if (!layer.weight.scheme.symmetric) add(layer.parameter + "_zero_point", layer.weight.parameters.zero_point);
    }
    add(prefix + "input_scale", layer.input.scale);
    add(prefix + "input_zero_point", layer.input.zero_point);
    add(prefix + "bias_replacement", layer.bias);
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

}  // namespace bellows::quant
