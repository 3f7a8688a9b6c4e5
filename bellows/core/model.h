#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace bellows {

/// Tensors by name, in a fixed order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Class names of modules by their path: {"", "ResNet"}, {"bn1", "BatchNorm2d"}.
using ModuleTypes = std::vector<std::pair<std::string, std::string>>;

/// A model as the rest of Bellows sees it: something with named parameters and buffers that turns one tensor into
/// another.
///
/// A handle with shared ownership: copies are the same model. Any `torch::nn` module becomes one with Model::of(module);
/// other kinds (TorchScript, compiled) derive from Model::Impl.
/// Threads:  as the module itself; forward from several threads is safe only if the module's is.
class Model {
 public:
  /// What a model has to be able to do. Parameters and buffers share storage with the model.
  class Impl {
   public:
    virtual ~Impl() = default;
    virtual at::Tensor forward(const at::Tensor& input) = 0;
    virtual NamedTensors named_parameters() const = 0;
    virtual NamedTensors named_buffers() const = 0;
    virtual void set_training(bool on) = 0;
    virtual bool training() const = 0;
    virtual void to(c10::Device device) = 0;
    /// Of all submodules; nothing where the kind of model does not know them.
    virtual ModuleTypes module_types() const { return {}; }
    /// The torch module behind it, or null.
    virtual std::shared_ptr<torch::nn::Module> module() const { return nullptr; }
  };
  using Forward = std::function<at::Tensor(const at::Tensor&)>;

  Model(std::string name, std::shared_ptr<Impl> impl);
  Model(std::string name, std::shared_ptr<torch::nn::Module> module, Forward forward);

  /// Params: module – a std::shared_ptr to a module or a torch::nn holder, with `at::Tensor forward(at::Tensor)`
  template <class Holder>
  static Model of(const Holder& module, std::string name = "model") {
    auto shared = as_shared(module);
    return Model(std::move(name), shared, [shared](const at::Tensor& x) { return shared->forward(x); });
  }

  const std::string& name() const { return name_; }
  at::Tensor forward(const at::Tensor& input) const { return impl_->forward(input); }
  at::Tensor operator()(const at::Tensor& input) const { return impl_->forward(input); }
  NamedTensors named_parameters() const { return impl_->named_parameters(); }
  NamedTensors named_buffers() const { return impl_->named_buffers(); }
  std::vector<at::Tensor> parameters() const;
  /// Parameters, then buffers: what a checkpoint holds.
  NamedTensors state_dict() const;
  void train(bool on = true) const { impl_->set_training(on); }
  void eval() const { impl_->set_training(false); }
  bool training() const { return impl_->training(); }
  void to(c10::Device device) const { impl_->to(device); }
  ModuleTypes module_types() const { return impl_->module_types(); }
  /// Throws: c10::ValueError – not a torch::nn module
  std::shared_ptr<torch::nn::Module> module() const;
  std::shared_ptr<torch::nn::Module> module_or_null() const { return impl_->module(); }

  /// So that a model reads like a torch::nn holder: `model->forward(x)`.
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

/// Puts a model into evaluation mode while it lives. Afterwards every submodule is in the mode that it was in: a frozen
/// batch normalization stays frozen.
class EvalMode {
 public:
  explicit EvalMode(Model model);
  ~EvalMode();
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  Model model_;
  std::vector<bool> modes_;  ///< of the submodules in order; of the whole model where there is no torch module
};

/// What load_state_dict found to differ.
struct LoadReport {
  std::vector<std::string> missing;     ///< the model has them, the file does not
  std::vector<std::string> unexpected;  ///< the file has them, the model does not
  std::vector<std::string> mismatched;  ///< other shape, in words: "fc.weight: file [1000, 512], model [10, 512]"
  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  std::string to_string() const;
};

/// Copies `tensors` into the model's parameters and buffers of the same name, converting dtype and device.
/// Params:   strict – true: throw if anything is missing, unexpected or of another shape, before anything is copied
/// Numerics: exact when dtypes are equal
/// Throws:   c10::ValueError – strict, with the whole report and the nearest names
/// Ref:      torch.nn.Module.load_state_dict
LoadReport load_state_dict(const Model& model, const NamedTensors& tensors, bool strict = true);

}  // namespace bellows
