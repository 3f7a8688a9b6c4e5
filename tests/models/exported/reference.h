#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/pow.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "bellows/io/tensors/torch_file.h"
#include "bellows/models/exported/exported_model.h"

namespace bellows::models::exported {

/// What a program of torch.export should compute; tools/goldens/exported.py describes the names of the tensors.
class Reference {
 public:
  explicit Reference(const std::string& path) {
    for (auto& [name, tensor] : io::load_tensors(path)) tensors_[name] = tensor;
  }

  /// Tensors called "KEY.0", "KEY.1", …; undefined ones for numbers that are missing.
  std::vector<at::Tensor> list(const std::string& key) const {
    std::vector<at::Tensor> result;
    for (const auto& [name, tensor] : group(key)) {
      const size_t index = std::stoul(name);
      if (result.size() <= index) result.resize(index + 1);
      result[index] = tensor;
    }
    return result;
  }
  /// Tensors whose names start with "KEY.", without this start.
  std::map<std::string, at::Tensor> group(const std::string& key) const {
    std::map<std::string, at::Tensor> result;
    for (const auto& [name, tensor] : tensors_) {
      if (name.starts_with(key + ".")) result[name.substr(key.size() + 1)] = tensor;
    }
    return result;
  }
  const at::Tensor& operator[](const std::string& name) const { return tensors_.at(name); }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

inline void seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(1234);
}

inline std::vector<at::Tensor> run_seeded(const Model& model, const std::vector<at::Tensor>& inputs) {
  seed();
  return model.forward_all(inputs);
}

inline at::Tensor loss_of(const std::vector<at::Tensor>& outputs) {
  at::Tensor sum;
  for (const at::Tensor& output : outputs) {
    if (!output.is_floating_point()) continue;
    const at::Tensor one = output.pow(2).mean();
    sum = sum.defined() ? sum + one : one;
  }
  return sum;
}

/// Steps of SGD with momentum 0.9, as torch.optim.SGD computes them.
class Training {
 public:
  explicit Training(Model model) : model_(std::move(model)), momenta_(model_.parameters().size()) {}

  double step(const std::vector<at::Tensor>& inputs) {
    constexpr double rate = 0.05, momentum = 0.9;
    std::vector<at::Tensor> parameters = model_.parameters();
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
    const at::Tensor loss = loss_of(model_.forward_all(inputs));
    loss.backward();
    const c10::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& gradient = parameters[i].grad();
      if (!gradient.defined()) continue;
      if (momenta_[i].defined()) {
        momenta_[i].mul_(momentum).add_(gradient);
      } else {
        momenta_[i] = gradient.clone();
      }
      parameters[i].add_(momenta_[i], -rate);
    }
    return loss.item<double>();
  }

 private:
  Model model_;
  std::vector<at::Tensor> momenta_;
};

/// The largest difference, relative to the largest value if that is above 1. Infinite if shapes or dtypes differ.
inline double difference(const at::Tensor& a, const at::Tensor& b) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  if (!a.defined() || !b.defined() || a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return infinite;
  if (a.numel() == 0) return 0;
  const at::Tensor x = a.detach().to(at::kDouble), y = b.to(at::kDouble);
  const double found = (x - y).abs().max().item<double>();
  return std::isnan(found) ? infinite : found / std::max(1.0, y.abs().max().item<double>());
}
inline double difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, difference(a[i], b[i]));
  return worst;
}
inline double difference(const std::map<std::string, at::Tensor>& expected, const NamedTensors& found) {
  std::map<std::string, at::Tensor> all(found.begin(), found.end());
  double worst = 0;
  for (const auto& [name, tensor] : expected) worst = std::max(worst, difference(all[name], tensor));
  return worst;
}

/// Differences between a program and its reference.
struct Differences {
  double outputs, gradients, buffers, other_size, losses;
  double worst() const { return std::max({outputs, gradients, buffers, other_size, losses}); }
};

inline NamedTensors gradients_of(const Model& model) {
  NamedTensors gradients;
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (parameter.grad().defined()) gradients.emplace_back(name, parameter.grad());
  }
  return gradients;
}

/// Compares outputs, gradients and buffers of a step, outputs for other sizes, and the losses of 20 steps.
inline Differences compare_training(const std::string& program, const Reference& reference) {
  Differences found{};
  const std::vector<at::Tensor> inputs = reference.list("input");
  const Model model = load_exported(program);
  const std::vector<at::Tensor> outputs = run_seeded(model, inputs);
  found.outputs = difference(outputs, reference.list("output"));
  loss_of(outputs).backward();
  const NamedTensors gradients = gradients_of(model);
  found.gradients = difference(reference.group("grad"), gradients);
  if (gradients.size() != reference.group("grad").size()) found.gradients = std::numeric_limits<double>::infinity();
  found.buffers = difference(reference.group("buffer"), model.named_buffers());
  {
    const c10::NoGradGuard no_grad;
    found.other_size =
        difference(run_seeded(load_exported(program), reference.list("other")), reference.list("other_output"));
  }
  const Model trained = load_exported(program);
  Training training(trained);
  seed();
  const at::Tensor& losses = reference["losses"];
  for (int64_t i = 0; i < losses.numel(); ++i) {
    const double expected = losses[i].item<double>(), loss = training.step(inputs);
    found.losses = std::max(found.losses, std::abs(loss - expected) / std::max(1.0, std::abs(expected)));
  }
  return found;
}

}  // namespace bellows::models::exported
