#pragma once

#include "tests/graph/support.h"

namespace bellows::graph::testing {

namespace nn = torch::nn;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

/// A whole training step: forward, backward, optimizer. What is done between forward and backward is the test's.
template <class Optimizer, class Options>
Program training(const std::shared_ptr<nn::Module>& module, const std::function<at::Tensor(int)>& loss_of,
                 const Options& options, const std::function<void(at::Tensor&)>& before_step = {}) {
  auto optimizer = std::make_shared<Optimizer>(module->parameters(), options);
  return {[=](int call) -> Tensors {
            optimizer->zero_grad();
            at::Tensor loss = loss_of(call);
            loss.backward();
            if (before_step) before_step(loss);
            optimizer->step();
            return {loss};
          },
          [=] { return state_of(*module); }};
}

inline nn::Sequential mlp() {
  return nn::Sequential(nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 32), nn::Tanh(), nn::Dropout(0.1),
                        nn::Linear(32, 10));
}

inline std::function<at::Tensor(int)> classify(const nn::Sequential& net, const at::Tensor& x) {
  const at::Tensor y = torch::randint(0, 10, {x.size(0)});
  return [net = net.ptr(), x, y](int call) {
    return nn::functional::cross_entropy(net->forward(x * (1 + 0.1 * call)), y);
  };
}

inline nn::Sequential conv_net() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8), nn::ReLU(),
                        nn::Conv2d(nn::Conv2dOptions(8, 8, 3).padding(1)), nn::BatchNorm2d(8), nn::ReLU(),
                        nn::MaxPool2d(2), nn::Flatten(), nn::Linear(8 * 16, 10));
}

/// Whole steps: the first is recorded, the second differs where gradients or states come into being, the others are followed.
inline void expect_trained_alike(const std::function<Program()>& make, int64_t most_mismatches = 2, int calls = 10) {
  const Explanation said = expect_same(make, calls);
  EXPECT_GE(said.followed_calls, calls - 1 - most_mismatches) << said.to_text();
  EXPECT_LE(said.mismatches, most_mismatches) << said.to_text();
  EXPECT_GT(said.never_seen, 0);
}

}  // namespace bellows::graph::testing
