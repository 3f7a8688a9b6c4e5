#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bellows/core/model_call.h"

namespace torch::nn {
class Module;
}

namespace bellows {

/// Tensors with their names, in a fixed order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Paths and class names of modules, such as {"", "ResNet"} and {"bn1", "BatchNorm2d"}.
using ModuleTypes = std::vector<std::pair<std::string, std::string>>;

/// An input of a model. Optional inputs may be omitted in a call.
struct ModelInput {
  std::string name;
  bool optional = false;
  bool operator==(const ModelInput&) const = default;
};

/// A model with named inputs, outputs, parameters and buffers. All components of Bellows use models through this class.
/// Most models have one tensor as input and one tensor as output.
///
/// Model is a handle with shared ownership: copies refer to the same model. Model::of(module) wraps any `torch::nn`
/// module. Other kinds of models, such as TorchScript and compiled models, derive from Model::Impl.
/// Threads:  same as the wrapped module; forward() is thread-safe only if the module's forward is thread-safe
class Model {
 public:
  /// Interface for all kinds of models. An implementation must override forward(), forward_all(), or both. The tensors
  /// in named_parameters() and named_buffers() share storage with the model.
  class Impl {
   public:
    virtual ~Impl() = default;
    /// Returns the first output for the first input. All other inputs are omitted.
    virtual at::Tensor forward(const at::Tensor& input);
    /// Returns all outputs, in the order of outputs().
    /// Params: inputs – in the order of inputs(). An undefined tensor means that the input is omitted
    virtual std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs);
    virtual std::vector<ModelInput> inputs() const { return {{"input"}}; }
    virtual std::vector<std::string> outputs() const { return {"output"}; }
    virtual NamedTensors named_parameters() const = 0;
    virtual NamedTensors named_buffers() const = 0;
    virtual void set_training(bool on) = 0;
    virtual bool training() const = 0;
    virtual void to(c10::Device device) = 0;
    /// Casts floating-point parameters and buffers in place. The tensor objects stay the same.
    virtual void to(c10::ScalarType dtype);
    /// Types of all submodules. Empty if this kind of model cannot list them.
    virtual ModuleTypes module_types() const { return {}; }
    /// The underlying torch module, or null.
    virtual std::shared_ptr<torch::nn::Module> module() const { return nullptr; }
  };
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  using ForwardAll = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  Model(std::string name, std::shared_ptr<Impl> impl);
  Model(std::string name, std::shared_ptr<torch::nn::Module> module, Forward forward);
  /// Params: forward – computes the outputs, in the order of `outputs`, from the inputs, in the order of `inputs`
  Model(std::string name, std::shared_ptr<torch::nn::Module> module, std::vector<ModelInput> inputs,
        std::vector<std::string> outputs, ForwardAll forward);

  /// Params: module – std::shared_ptr to a module, or a torch::nn holder, with `at::Tensor forward(at::Tensor)`
  template <class Holder>
  static Model of(const Holder& module, std::string name = "model") {
    auto shared = as_shared(module);
    return Model(std::move(name), shared, [shared](const at::Tensor& x) { return shared->forward(x); });
  }

  /// Wraps a module with several inputs or outputs.
  /// ```
  /// const Model model = Model::of(siamese, {"left", "right"}, {"distance"});
  /// const at::Tensor distance = model.forward({{"left", a}, {"right", b}}).front().second;
  /// ```
  /// Params: module  – its forward must accept 1 to 8 tensors, and return a tensor, a pair or tuple of tensors, or a
  ///                   vector of tensors
  ///         inputs  – names of forward's parameters, in order. Parameters with a default value may be left out
  ///         outputs – names of forward's results, in order
  /// Throws: c10::ValueError if forward accepts a different number of tensors, or if a name is empty or used twice
  template <class Holder>
  static Model of(const Holder& module, std::vector<std::string> inputs, std::vector<std::string> outputs = {"output"},
                  std::string name = "model") {
    auto shared = as_shared(module);
    std::vector<ModelInput> all;
    all.reserve(inputs.size());
    for (std::string& input : inputs) all.push_back({std::move(input)});
    return Model(std::move(name), shared, std::move(all), std::move(outputs),
                 [shared](const std::vector<at::Tensor>& x) { return model_detail::call(*shared, x); });
  }
  template <class Holder>
  static Model of(const Holder& module, std::initializer_list<const char*> inputs,
                  std::vector<std::string> outputs = {"output"}, std::string name = "model") {
    return of(module, std::vector<std::string>(inputs.begin(), inputs.end()), std::move(outputs), std::move(name));
  }

  const std::string& name() const { return name_; }
  /// Returns the same model with a different name.
  Model renamed(std::string name) const { return Model(std::move(name), impl_); }
  /// Returns the first output.
  /// Throws: c10::ValueError if the model requires several inputs
  at::Tensor forward(const at::Tensor& input) const { return impl_->forward(input); }
  at::Tensor operator()(const at::Tensor& input) const { return impl_->forward(input); }
  /// Params:  inputs – with their names, in any order
  /// Returns: all outputs, in the order of outputs()
  /// Throws:  c10::ValueError if an input is missing, unknown (the message suggests the nearest name) or given twice
  NamedTensors forward(const NamedTensors& inputs) const;
  NamedTensors operator()(const NamedTensors& inputs) const { return forward(inputs); }
  /// Calls the model without names.
  /// Params: inputs – in the order of inputs(). To omit an input, pass an undefined tensor; inputs at the end may be
  ///                  left out
  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) const {
    return impl_->forward_all(inputs);
  }
  std::vector<ModelInput> inputs() const { return impl_->inputs(); }
  std::vector<std::string> outputs() const { return impl_->outputs(); }
  NamedTensors named_parameters() const { return impl_->named_parameters(); }
  NamedTensors named_buffers() const { return impl_->named_buffers(); }
  std::vector<at::Tensor> parameters() const;
  std::vector<at::Tensor> buffers() const;
  /// Parameters, followed by buffers. A checkpoint contains these tensors.
  NamedTensors state_dict() const;
  void train(bool on = true) const { impl_->set_training(on); }
  void eval() const { impl_->set_training(false); }
  bool training() const { return impl_->training(); }
  void to(c10::Device device) const { impl_->to(device); }
  /// Casts floating-point parameters and buffers in place. The tensor objects stay the same. Gradients are removed.
  void to(c10::ScalarType dtype) const { impl_->to(dtype); }
  ModuleTypes module_types() const { return impl_->module_types(); }
  /// The implementation, for functions that work with one kind of model only.
  const std::shared_ptr<Impl>& implementation() const { return impl_; }
  /// Throws: c10::ValueError if the model is not a torch::nn module
  std::shared_ptr<torch::nn::Module> module() const;
  std::shared_ptr<torch::nn::Module> module_or_null() const { return impl_->module(); }

  /// Supports the syntax of torch::nn holders: `model->forward(x)`.
  const Model* operator->() const { return this; }

 private:
  friend class EvalMode;
  template <class M>
  static std::shared_ptr<M> as_shared(const std::shared_ptr<M>& module) {
    return module;
  }
  template <class H>
  static auto as_shared(const H& holder) -> decltype(holder.ptr()) {
    return holder.ptr();
  }

  std::string name_;
  std::shared_ptr<Impl> impl_;
};

/// Casts tensors to `dtype` and removes their gradients. The tensor objects stay the same, so optimizers still refer to
/// them.
void cast_in_place(const NamedTensors& tensors, c10::ScalarType dtype);

/// A model that forwards every call to another model. Derived classes override the functions that differ. forward()
/// calls forward_all(), so it is sufficient to override forward_all().
class ModelWrapper : public Model::Impl {
 public:
  explicit ModelWrapper(Model inner) : inner_(std::move(inner)) {}
  const Model& wrapped() const { return inner_; }
  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override {
    return inner_.forward_all(inputs);
  }
  std::vector<ModelInput> inputs() const override { return inner_.inputs(); }
  std::vector<std::string> outputs() const override { return inner_.outputs(); }
  NamedTensors named_parameters() const override { return inner_.named_parameters(); }
  NamedTensors named_buffers() const override { return inner_.named_buffers(); }
  void set_training(bool on) override { inner_.train(on); }
  bool training() const override { return inner_.training(); }
  void to(c10::Device device) override { inner_.to(device); }
  void to(c10::ScalarType dtype) override { inner_.to(dtype); }
  ModuleTypes module_types() const override { return inner_.module_types(); }
  std::shared_ptr<torch::nn::Module> module() const override { return inner_.module_or_null(); }

 protected:
  const Model& inner() const { return inner_; }

 private:
  Model inner_;
};

/// Puts a model into evaluation mode while the guard exists. The destructor restores the previous mode of every
/// submodule. For example, a batch norm that was in evaluation mode before stays in evaluation mode.
class EvalMode {
 public:
  explicit EvalMode(Model model);
  ~EvalMode();
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  Model model_;
  std::vector<bool> modes_;  ///< previous modes of all submodules, or of the model if it is not a torch module
};

/// Differences that load_state_dict() found.
struct LoadReport {
  std::vector<std::string> missing;     ///< names of tensors that only the model has
  std::vector<std::string> unexpected;  ///< names of tensors that the model does not have
  std::vector<std::string> mismatched;  ///< different shapes, such as "fc.weight: file [1000, 512], model [10, 512]"
  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  std::string to_string() const;
};

/// Copies `tensors` into the model's parameters and buffers of the same name. Dtype and device are converted.
/// Params:   strict – throw before copying if a tensor is missing, is unexpected or has a different shape
/// Numerics: exact if dtypes are equal
/// Throws:   c10::ValueError if `strict` is set and the tensors differ (the message has the full report and suggests
///           the nearest names)
/// Ref:      torch.nn.Module.load_state_dict
LoadReport load_state_dict(const Model& model, const NamedTensors& tensors, bool strict = true);

}  // namespace bellows
