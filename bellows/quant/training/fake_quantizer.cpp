#include "bellows/quant/training/fake_quantizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fake_quantize_learnable_per_tensor_affine.h>
#include <ATen/ops/fake_quantize_per_channel_affine.h>
#include <ATen/ops/fake_quantize_per_tensor_affine.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/mutex.h"
#include "bellows/quant/layer_table.h"
#include "bellows/quant/observer.h"
#include "bellows/quant/training/range_operators.h"
#include "bellows/tap/argument_tap.h"

namespace bellows::quant {

namespace {

constexpr double smallest_step = std::numeric_limits<float>::epsilon();

/// An operator of layers: the places of its arguments.
struct LayerOperator {
  c10::OperatorHandle handle;
  LayerKind kind;
  size_t input = 0, weight = 1;
  bool transposed = false;  ///< whether the operator reads the transpose of the weight
  size_t flag = 0;          ///< place of convolution's argument `transposed`; 0: none
};

const std::vector<LayerOperator>& layer_operators() {
  static const auto* const known = [] {
    const auto named = [](const char* name, const char* overload = "") {
      return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    };
    auto* made = new std::vector<LayerOperator>;  // never destroyed: threads may outlive static objects
    made->push_back({.handle = named("aten::linear"), .kind = LayerKind::linear});
    made->push_back(
        {.handle = named("aten::addmm"), .kind = LayerKind::linear, .input = 1, .weight = 2, .transposed = true});
    for (const char* name : {"aten::mm", "aten::matmul"})
      made->push_back({.handle = named(name), .kind = LayerKind::linear, .transposed = true});
    for (const char* name : {"aten::conv1d", "aten::conv2d", "aten::conv3d"}) {
      for (const char* overload : {"", "padding"})
        made->push_back({.handle = named(name, overload), .kind = LayerKind::convolution});
    }
    for (const char* name : {"aten::convolution", "aten::_convolution"})
      made->push_back({.handle = named(name), .kind = LayerKind::convolution, .flag = 6});
    return made;
  }();
  return *known;
}

const LayerOperator* layer_operator(const tap::OpRef& op, std::span<c10::IValue> arguments) {
  for (const LayerOperator& known : layer_operators()) {
    if (known.handle == op.handle())
      return known.flag > 0 && arguments[known.flag].toBool() ? nullptr : &known;  // transposed convolution
  }
  return nullptr;
}

bool can_be_weight(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble && tensor.dim() >= 2;
}

}  // namespace

/// The layers of a model. Which parameters are weights of layers is only known when an operator reads them, so each matrix or
/// larger tensor has an entry.
class FakeQuantizer::Impl {
 public:
  struct Layer {
    std::string name;
    TrainedLayer trained;
    MovingRange range;
    bool seen = false;      ///< whether the range is that of a batch
    bool observed = false;  ///< whether a batch was added since the last call of combine_ranges()
    bool kept = false;  ///< whether the layer stays in floating point, because another operator reads its weight, too
  };

  Impl(Model model, FakeQuantizerOptions options) : model_(std::move(model)), options_(std::move(options)) {
    TORCH_CHECK_VALUE(options_.averaging_constant > 0 && options_.averaging_constant <= 1,
                      "FakeQuantizer: expected an averaging_constant in (0, 1], got ", options_.averaging_constant,
                      ".");
    std::vector<std::string> names;
    const TensorNames parameters(model_.named_parameters());
    for (const TensorNames::Entry& entry : parameters.entries()) {
      if (can_be_weight(entry.tensor)) names.push_back(layer_name(entry.name));
    }
    TORCH_CHECK_VALUE(!names.empty(),
                      "FakeQuantizer: the model has no parameter that can be the weight of a linear or a "
                      "convolution. It may be quantized already, or be in float64.");
    check_patterns(options_.skip, names);
    for (const TensorNames::Entry& entry : parameters.entries()) {
      if (can_be_weight(entry.tensor)) add(entry);
    }
  }

  const Model& model() const { return model_; }

  /// Returns the layer of a parameter, or null if it has none or stays in floating point.
  Layer* find(const std::string& parameter) {
    const auto found = places_.find(parameter);
    if (found == places_.end()) return nullptr;
    Layer& layer = layers_[found->second];
    const MutexLock lock(mutex_);
    return layer.kept ? nullptr : &layer;
  }

  void keep(const std::string& parameter) {
    const auto found = places_.find(parameter);
    if (found == places_.end()) return;
    const MutexLock lock(mutex_);
    layers_[found->second].kept = true;
  }

  /// Adds a batch to the range of the layer's inputs.
  /// Returns: whether the layer has a range
  bool observe(Layer& layer, const at::Tensor& input, LayerKind kind, bool updates) {
    const MutexLock lock(mutex_);
    if (!updates || input.numel() == 0 || (options_.learned_steps && layer.seen)) return layer.seen;
    const c10::NoGradGuard no_gradients;
    layer.range.bounds().copy_(moving_range(layer.range.bounds(), input, options_.averaging_constant));
    if (options_.learned_steps) {
      const Parameters first = parameters_of_range(layer.range.bounds(), kind);
      layer.trained.input_step.detach().copy_(first.scale.view({1}));
      layer.trained.input_zero_point.copy_(first.zero_point.view({1}));
    }
    return layer.seen = layer.observed = true;
  }

  void combine_ranges(const std::function<at::Tensor(at::Tensor)>& largest) {
    TORCH_CHECK_VALUE(!options_.learned_steps,
                      "FakeQuantizer: combine_ranges() works only without the option `learned_steps`, because learned "
                      "steps are not exchanged.");
    const MutexLock lock(mutex_);
    const c10::NoGradGuard no_gradients;
    // The maximum of −low and high. A moving average is monotone, so the widest average is that of the widest ranges.
    std::vector<at::Tensor> own;
    const at::Tensor sign = signs();
    for (const Layer& layer : layers_) {
      const at::Tensor bounds = layer.range.bounds() * sign;
      own.push_back(layer.observed ? bounds : at::full_like(bounds, -std::numeric_limits<double>::infinity()));
    }
    const at::Tensor all = largest(at::stack(own)) * sign;  // [layers, 2]
    const at::Tensor unseen = all.select(1, 0).gt(all.select(1, 1));
    const at::Tensor unseen_on_host = unseen.to(at::kCPU);
    for (size_t i = 0; i < layers_.size(); ++i) {
      Layer& layer = layers_[i];
      const auto row = static_cast<int64_t>(i);
      layer.range.bounds().copy_(at::where(unseen[row], layer.range.bounds(), all[row]));
      layer.seen = layer.seen || !unseen_on_host[row].item<bool>();
      layer.observed = false;
    }
  }

  at::Tensor fake_input(const Layer& layer, const at::Tensor& x, LayerKind kind) const {
    const TrainedLayer& trained = layer.trained;
    const at::Tensor values = x.to(at::kFloat);
    if (trained.input_step.defined()) {
      const double factor = 1 / std::sqrt(255 * static_cast<double>(std::max<int64_t>(x.numel(), 1)));
      return at::_fake_quantize_learnable_per_tensor_affine(values, positive(trained.input_step),
                                                            trained.input_zero_point, 0, 255, factor)
          .to(x.scalar_type());
    }
    const Parameters parameters = without_gradients([&] { return input_parameters(trained, kind); });
    return at::fake_quantize_per_tensor_affine(values, parameters.scale, parameters.zero_point, 0, 255)
        .to(x.scalar_type());
  }

  at::Tensor fake_weight(const Layer& layer, const at::Tensor& weight) const {
    const TrainedLayer& trained = layer.trained;
    const Scheme scheme = weight_scheme();
    const Parameters parameters = without_gradients([&] { return weight_parameters(trained, weight); });
    if (trained.weight_step.defined())
      return learned_fake_quantize(weight, positive(trained.weight_step), parameters.zero_point, scheme);
    return at::fake_quantize_per_channel_affine(weight.to(at::kFloat), parameters.scale, parameters.zero_point,
                                                /*axis=*/0, scheme.smallest(), scheme.largest())
        .to(weight.scalar_type());
  }

  std::vector<at::Tensor> learned_steps() const {
    std::vector<at::Tensor> steps;
    for (const Layer& layer : layers_) {
      if (!layer.trained.weight_step.defined()) continue;
      steps.push_back(layer.trained.weight_step);
      steps.push_back(layer.trained.input_step);
    }
    return steps;
  }

  TrainedLayers trained_layers() {
    const MutexLock lock(mutex_);
    TrainedLayers made;
    for (const Layer& layer : layers_) {
      if (layer.seen && !layer.kept) made.emplace(layer.name, copy_of(layer.trained));
    }
    return made;
  }

  NamedTensors state() {
    const MutexLock lock(mutex_);
    NamedTensors all;
    for (Layer& layer : layers_) {
      const NamedTensors own = tensors_of(layer);
      for (const auto& [name, tensor] : own) {
        if (layer.seen || name.ends_with("weight_step")) all.emplace_back(name, tensor.detach().clone());
      }
      if (layer.kept) all.emplace_back(layer.name + ".kept", at::scalar_tensor(1, at::kLong));
    }
    return all;
  }

  void load_state(const NamedTensors& state) {
    const MutexLock lock(mutex_);
    const c10::NoGradGuard no_gradients;
    std::unordered_map<std::string, std::pair<Layer*, at::Tensor>> known;
    std::vector<std::string> names;
    for (Layer& layer : layers_) {
      layer.seen = layer.kept = false;
      NamedTensors own = tensors_of(layer);
      own.emplace_back(layer.name + ".kept", at::scalar_tensor(1, at::kLong));
      for (const auto& [name, tensor] : own) {
        known.emplace(name, std::pair{&layer, tensor});
        names.push_back(name);
      }
    }
    for (const auto& [name, tensor] : state) {
      const auto found = known.find(name);
      TORCH_CHECK_VALUE(found != known.end(), "FakeQuantizer: the state has a tensor \"", name, "\", but the model \"",
                        model_.name(), "\" has no such layer, or the option `learned_steps` differs.",
                        did_you_mean(name, names));
      auto& [layer, own] = found->second;
      TORCH_CHECK_VALUE(tensor.sizes() == own.sizes(), "FakeQuantizer: expected \"", name, "\" of shape ", own.sizes(),
                        ", got ", tensor.sizes(), ". The state belongs to another model.");
      own.copy_(tensor);
      layer->kept = layer->kept || name.ends_with(".kept");
      layer->seen = layer->seen || name.ends_with(".input_range");
    }
  }

  std::vector<at::Tensor> buffers() const {
    std::vector<at::Tensor> all;
    for (const Layer& layer : layers_) all.push_back(layer.range.bounds());
    return all;
  }

 private:
  /// Turns lower bounds into upper ones, and back.
  at::Tensor signs() const {
    const at::Tensor sign = at::ones_like(layers_.front().range.bounds());
    sign.select(0, 0).fill_(-1);
    return sign;
  }

  template <class Function>
  static Parameters without_gradients(const Function& function) {
    const c10::NoGradGuard no_gradients;
    return function();
  }

  static TrainedLayer copy_of(const TrainedLayer& layer) {
    const auto copied = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.detach().clone() : tensor; };
    return {.input_range = copied(layer.input_range),
            .input_step = copied(layer.input_step),
            .input_zero_point = copied(layer.input_zero_point),
            .weight_step = copied(layer.weight_step)};
  }

  /// Returns the step without values that are not positive, which an optimizer can produce. The gradient stays 1.
  static at::Tensor positive(const at::Tensor& step) {
    const at::Tensor value = step.detach();
    return step + (value.clamp_min(smallest_step) - value);
  }

  static NamedTensors tensors_of(const Layer& layer) {
    NamedTensors all{{layer.name + ".input_range", layer.range.bounds()}};
    if (!layer.trained.weight_step.defined()) return all;
    all.emplace_back(layer.name + ".input_step", layer.trained.input_step.detach());
    all.emplace_back(layer.name + ".input_zero_point", layer.trained.input_zero_point);
    all.emplace_back(layer.name + ".weight_step", layer.trained.weight_step.detach());
    return all;
  }

  void add(const TensorNames::Entry& entry) {
    const std::string name = layer_name(entry.name);
    for (const std::string& pattern : options_.skip) {
      if (matches_name(pattern, name)) return;
    }
    const c10::NoGradGuard no_gradients;
    Layer layer{.name = name, .trained = {}, .range = MovingRange({}, entry.tensor.device())};
    layer.trained.input_range = layer.range.bounds();
    if (options_.learned_steps) {
      const auto floats = entry.tensor.options().dtype(at::kFloat);
      layer.trained.weight_step = weight_parameters({}, entry.tensor).scale.clone().requires_grad_();
      layer.trained.input_step = at::ones({1}, floats).requires_grad_();
      layer.trained.input_zero_point = at::zeros({1}, floats);
    }
    places_.emplace(entry.name, layers_.size());
    layers_.push_back(std::move(layer));
  }

  const Model model_;
  const FakeQuantizerOptions options_;
  std::vector<Layer> layers_;
  std::unordered_map<std::string, size_t> places_;  ///< by parameter
  Mutex mutex_;                                     ///< for seen, kept and the ranges
};

namespace {

/// Replaces weights and inputs of layers by fake-quantized ones.
class LayerTap : public tap::ArgumentTap {
 public:
  using Find = std::function<void(const std::string& parameter, const at::Tensor& weight, const LayerOperator& op,
                                  std::span<c10::IValue> arguments)>;
  using Keep = std::function<void(const std::string& parameter)>;

  LayerTap(const Model& model, Find quantize, Keep keep)
      : parameters_(model.named_parameters()), quantize_(std::move(quantize)), keep_(std::move(keep)) {}

  void call(const tap::OpRef& op, std::span<c10::IValue> arguments) override {
    if (op.name() == "aten::embedding") {
      if (const auto* const entry = parameters_.find(arguments[0].toTensor())) keep_(entry->name);
      return;
    }
    const LayerOperator* const known = layer_operator(op, arguments);
    if (!known) return;
    const at::Tensor& seen = arguments[known->weight].toTensor();
    const TensorNames::Entry* const entry = parameters_.find(seen);
    if (!entry || !is_whole(entry->tensor, seen, known->transposed)) return;
    if (arguments[known->input].toTensor().is_floating_point())
      quantize_(entry->name, entry->tensor, *known, arguments);
  }

 private:
  const TensorNames parameters_;
  const Find quantize_;
  const Keep keep_;
};

}  // namespace

FakeQuantizer::FakeQuantizer(Model model, FakeQuantizerOptions options)
    : impl_(std::make_shared<Impl>(std::move(model), std::move(options))) {}

const Model& FakeQuantizer::model() const {
  return impl_->model();
}

std::vector<at::Tensor> FakeQuantizer::learned_steps() const {
  return impl_->learned_steps();
}

TrainedLayers FakeQuantizer::trained_layers() const {
  return impl_->trained_layers();
}

NamedTensors FakeQuantizer::state() const {
  return impl_->state();
}

void FakeQuantizer::load_state(const NamedTensors& state) {
  impl_->load_state(state);
}

void FakeQuantizer::combine_ranges(const std::function<at::Tensor(at::Tensor)>& largest) {
  impl_->combine_ranges(largest);
}

std::vector<at::Tensor> FakeQuantizer::buffers() const {
  return impl_->buffers();
}

FakeQuantizerGuard::FakeQuantizerGuard(const FakeQuantizer& quantizer) {
  const auto impl = quantizer.impl_;
  const auto quantize = [impl](const std::string& parameter, const at::Tensor& weight, const LayerOperator& op,
                               std::span<c10::IValue> arguments) {
    FakeQuantizer::Impl::Layer* const layer = impl->find(parameter);
    if (!layer) return;
    const at::Tensor input = arguments[op.input].toTensor();
    const bool recomputes = torch::autograd::get_current_graph_task_id() >= 0;
    if (!impl->observe(*layer, input, op.kind, impl->model().training() && !recomputes)) return;
    const at::Tensor fake = impl->fake_weight(*layer, weight);
    arguments[op.weight] = op.transposed ? fake.t() : fake;
    arguments[op.input] = impl->fake_input(*layer, input, op.kind);
  };
  const auto keep = [impl](const std::string& parameter) { impl->keep(parameter); };
  tap_ = std::make_shared<tap::ArgumentTapGuard>(std::make_shared<LayerTap>(impl->model(), quantize, keep));
}

FakeQuantizerGuard::~FakeQuantizerGuard() = default;

}  // namespace bellows::quant
