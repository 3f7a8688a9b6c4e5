#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "tests/parallel/distinct_parameters.h"

namespace bellows::parallel::testing {

/// The same numbers for the same seed on every rank, whatever other threads draw.
inline at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kDouble) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble).to(dtype);
}

/// x [N, 6] → y [N, 3] through layers of odd widths; only `active` of its branches is used.
class Layers final : public torch::nn::Module {
 public:
  explicit Layers(uint64_t seed = 1, at::ScalarType dtype = at::kDouble, int branches = 1) {
    add("first", {13, 6}, seed, dtype);
    for (int i = 0; i < branches; ++i) add("branch" + std::to_string(i), {13, 13}, seed + 10 + i, dtype);
    add("last", {3, 13}, seed + 1, dtype);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = apply("first", x).tanh();
    return apply("last", apply("branch" + std::to_string(active), h).tanh());
  }
  int active = 0;

 private:
  void add(const std::string& name, at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
    register_parameter(name + "_weight", numbers(sizes, seed, dtype) * 0.3);
    register_parameter(name + "_bias", numbers(sizes[0], seed + 100, dtype) * 0.3);
  }
  at::Tensor apply(const std::string& name, const at::Tensor& x) {
    return at::linear(x, named_parameters()[name + "_weight"], named_parameters()[name + "_bias"]);
  }
};

/// One weight in two places, under two names: x [N, 6] → y [N, 6].
class Tied final : public torch::nn::Module {
 public:
  explicit Tied(uint64_t seed = 1) {
    weight_ = register_parameter("encoder", numbers({7, 6}, seed) * 0.4);
    register_parameter("decoder", weight_);
    bias_ = register_parameter("bias", numbers({6}, seed + 1));
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight_).tanh().matmul(weight_) + bias_; }

 private:
  at::Tensor weight_, bias_;
};

template <class Module, class... Args>
std::pair<Model, std::shared_ptr<Module>> make_model(Args... args) {
  auto module = std::make_shared<Module>(args...);
  return {Model::of(module), module};
}

/// A loss of a step, by its number: the mean over the samples.
inline at::Tensor loss_of(const at::Tensor& y) {
  return (y * y).mean() + y.sin().mean();
}

inline std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

inline std::vector<at::Tensor> gradients_of(const Model& model) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : model.parameters())
    result.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  return result;
}

inline void expect_close(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected,
                         double tolerance = 1e-9) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << "tensor " << i;
    if (got[i].defined()) {
      EXPECT_TRUE(at::allclose(got[i], expected[i], tolerance, tolerance * 1e-3)) << "tensor " << i;
    }
  }
}

inline void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << "tensor " << i;
    if (got[i].defined()) {
      EXPECT_TRUE(at::equal(got[i], expected[i])) << "tensor " << i;
    }
  }
}

inline torch::optim::SGD sgd(const Model& model) {
  return torch::optim::SGD(distinct_parameters(model), torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// The part of a batch that a rank gets.
inline at::Tensor part(const at::Tensor& batch, int rank, int ranks) {
  return batch.chunk(ranks)[rank];
}

}  // namespace bellows::parallel::testing
