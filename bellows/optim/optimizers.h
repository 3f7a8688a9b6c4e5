#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

namespace bellows::optim {

/// How a step is carried out. The state is the same, so an implementation can be changed between two steps or two runs.
enum class Impl {
  loop,     ///< libtorch's own optimizer: parameter after parameter, a dozen operators each
  foreach,  ///< operator after operator over lists of tensors; on the CPU in lists that fit the cache
};

/// Params: lr, momentum, dampening, weight_decay, nesterov – as torch.optim.SGD's
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  Impl impl = Impl::foreach;
};

/// Params: lr, beta1, beta2, eps, weight_decay, amsgrad – as torch.optim.AdamW's
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  Impl impl = Impl::foreach;
};

/// What the optimizers of this room share: options and state are of libtorch's own classes, so `param_groups()`,
/// `state()`, `torch::save` and `torch::load` see what libtorch's optimizer of the same name would show them.
/// Threads:  one thread at a time
class LibtorchOptimizer : public torch::optim::Optimizer {
 public:
  using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

  /// Applies the gradients that are there; a parameter without one is left alone. Sparse gradients take Impl::loop.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  Impl impl() const { return impl_; }
  void set_impl(Impl impl) { impl_ = impl; }

 protected:
  /// Params: reference – libtorch's optimizer without parameters, which checks the options and carries out Impl::loop
  LibtorchOptimizer(std::unique_ptr<torch::optim::Optimizer> reference, const ParamGroups& groups, Impl impl);
  /// One step over dense gradients of one parameter group.
  virtual void step_foreach(torch::optim::OptimizerParamGroup& group) = 0;

 private:
  std::unique_ptr<torch::optim::Optimizer> reference_;
  Impl impl_;
};

/// Stochastic gradient descent with momentum.
/// Numerics: on the CPU loop and foreach are bit for bit torch::optim::SGD (tests/optim/optimizers_test.cpp)
/// Throws:   c10::ValueError – no parameters; c10::Error – options out of range
/// Ref:      torch.optim.SGD
class SGD : public LibtorchOptimizer {
 public:
  SGD(std::vector<at::Tensor> parameters, const SGDOptions& options);
  /// Params: groups – with options of class torch::optim::SGDOptions, or none to take `options`
  SGD(const ParamGroups& groups, const SGDOptions& options);

 protected:
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
};

/// Adam with decoupled weight decay.
/// Numerics: on the CPU loop and foreach are bit for bit torch::optim::AdamW (tests/optim/optimizers_test.cpp)
/// Throws:   c10::ValueError – no parameters; c10::Error – options out of range
/// Ref:      torch.optim.AdamW; arXiv:1711.05101
class AdamW : public LibtorchOptimizer {
 public:
  AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& options);
  /// Params: groups – with options of class torch::optim::AdamWOptions, or none to take `options`
  AdamW(const ParamGroups& groups, const AdamWOptions& options);

 protected:
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
};

}  // namespace bellows::optim
