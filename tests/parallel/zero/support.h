#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/optim/optimizers.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "tests/parallel/ranks.h"
#include "tests/parallel/zero/net.h"

namespace bellows::parallel::testing::zero {

using OptimizerPtr = std::shared_ptr<torch::optim::Optimizer>;
using MakeOptimizer = std::function<OptimizerPtr(std::vector<at::Tensor>)>;

inline MakeOptimizer adamw(optim::Impl impl = optim::Impl::automatic) {
  return [impl](std::vector<at::Tensor> parameters) {
    return std::make_shared<optim::AdamW>(std::move(parameters),
                                          optim::AdamWOptions{.lr = 0.01, .weight_decay = 0.1, .impl = impl});
  };
}
inline MakeOptimizer sgd(optim::Impl impl = optim::Impl::automatic) {
  return [impl](std::vector<at::Tensor> parameters) {
    return std::make_shared<optim::SGD>(
        std::move(parameters), optim::SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .impl = impl});
  };
}
inline MakeOptimizer rmsprop(optim::Impl impl = optim::Impl::automatic) {
  return [impl](std::vector<at::Tensor> parameters) {
    return std::make_shared<optim::RMSprop>(std::move(parameters),
                                            optim::RMSpropOptions{.lr = 0.01, .momentum = 0.5, .impl = impl});
  };
}

/// A world of one rank.
inline const comm::Group& alone() {
  static const comm::Group group = [] {
    std::optional<comm::Group> one;
    run_ranks(1, [&](const comm::Group& only) { one = only; });
    return *one;
  }();
  return group;
}

constexpr int64_t small_bucket = 600;  // several units, of several parameters each

/// What DistributedDataParallel leaves behind: gradients that are the ranks' mean. `unused` has none on any rank.
inline void average_gradients(const Net& net, const comm::Group& group) {
  std::vector<at::Tensor> gradients, flat;
  for (const at::Tensor& parameter : net.distinct()) {
    if (!parameter.grad().defined()) continue;
    gradients.push_back(parameter.grad());
    flat.push_back(gradients.back().reshape({-1}));
  }
  int64_t at = 0;
  const at::Tensor mean = comm::all_reduce(at::cat(flat), group, comm::Reduce::mean);
  for (at::Tensor& gradient : gradients) {
    gradient.copy_(mean.narrow(0, at, gradient.numel()).view_as(gradient));
    at += gradient.numel();
  }
}

/// While it lives, this thread computes as ranks do: sums of a kernel's threads round otherwise.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_ = at::get_num_threads();
};

/// One rank's model under a sharded optimizer.
struct Sharded {
  NetModel m;
  std::shared_ptr<ShardedOptimizer> optimizer;
  comm::Group group;

  Sharded(comm::Group ranks, int stage, const MakeOptimizer& make, at::ScalarType dtype = at::kDouble)
      : m(dtype), group(std::move(ranks)) {
    optimizer = zero_optimizer(make(m.net->distinct()), m.model, group, {.stage = stage, .bucket_bytes = small_bucket});
  }
  void backward(int64_t step, double factor = 1) {
    (m.net->loss(step, group.rank(), group.size()) * factor).backward();
    if (optimizer->stage() == 1) average_gradients(*m.net, group);
  }
  void train(int64_t first, int64_t last) {
    for (int64_t step = first; step < last; ++step) {
      optimizer->zero_grad();
      backward(step);
      optimizer->step();
    }
  }
};

inline std::vector<at::Tensor> train_alone(const MakeOptimizer& make, int64_t steps, int64_t rows = 12) {
  Net net;
  const OptimizerPtr optimizer = make(net.distinct());
  for (int64_t step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    net.loss(step, 0, 1, rows).backward();
    optimizer->step();
  }
  return net.values();
}

inline void expect_close(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected, double rtol,
                         double atol = 1e-12) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::allclose(got[i], expected[i], rtol, atol))
        << "tensor " << i << " differs by " << (got[i] - expected[i]).abs().max().item<double>();
  }
}
inline void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << "tensor " << i;
}
inline void expect_equal(const NamedTensors& got, const NamedTensors& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].first, expected[i].first);
    EXPECT_TRUE(at::equal(got[i].second, expected[i].second)) << got[i].first;
  }
}

}  // namespace bellows::parallel::testing::zero
