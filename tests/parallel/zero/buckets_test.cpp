#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

#include "tests/parallel/zero/blocks.h"
#include "tests/support/errors.h"

// When ZeRO-2 and ZeRO-3 exchange the buckets of gradients.
namespace bellows::parallel::testing::zero {
namespace {

constexpr int64_t chain_layers = 6, chain_width = 8, chain_steps = 4;

/// A chain of layers, and a layer beside it whose bucket is the first one in the layout. Not all ranks use it.
struct SideChain final : torch::nn::Module {
  SideChain() {
    for (int64_t i = 0; i < chain_layers; ++i) chain->push_back(torch::nn::Linear(chain_width, chain_width));
    register_module("chain", chain);
    register_module("side", side);
    to(at::kDouble);
    const c10::NoGradGuard no_grad;
    double seed = 0;
    for (const at::Tensor& parameter : parameters()) parameter.copy_(made_up(parameter.sizes(), at::kDouble, ++seed));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *chain) {
      x = at::tanh(layer->as<torch::nn::Linear>()->forward(x));
      if (layer == *chain->begin() && on_first) on_first(x);
    }
    return uses_side ? x + side(x) : x;
  }
  at::Tensor loss(int64_t step, int64_t rank) { return forward(rows(step, rank, 2)).square().mean(); }

  torch::nn::ModuleList chain;
  torch::nn::Linear side = torch::nn::Linear(chain_width, chain_width);
  bool uses_side = true;
  std::function<void(const at::Tensor&)> on_first;  ///< called with the first layer's output
};

std::vector<at::Tensor> chain_alone(int64_t users) {
  const auto net = std::make_shared<SideChain>();
  const OptimizerPtr optimizer = sgd()(net->parameters());
  for (int64_t step = 0; step < chain_steps; ++step) {
    optimizer->zero_grad();
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (const int64_t rank : {0, 1}) {
      net->uses_side = rank < users;
      sum = sum + net->loss(step, rank);
    }
    (sum / 2).backward();
    optimizer->step();
  }
  return values_of(*net);
}

int64_t bytes_scattered(const comm::Group& group) {
  const auto traffic = comm::traffic(group);
  const auto found = traffic.find("reduce_scatter");
  return found == traffic.end() ? 0 : found->second.bytes;
}

TEST(ZeroBuckets, AnIncompleteBucketHoldsUpTheOthersOnlyInTheFirstStep) {
  for (const int64_t users : {0, 1}) {
    SCOPED_TRACE(users);
    const std::vector<at::Tensor> expected = chain_alone(users);
    run_ranks(2, [&](const comm::Group& group) {
      const auto net = std::make_shared<SideChain>();
      const auto optimizer =
          zero_optimizer(sgd()(net->parameters()), Model::of(net), group, {.stage = 2, .bucket_bytes = 1});
      net->uses_side = group.rank() < users;
      int64_t before = 0, sent = -1;  // bytes before the gradients of the first layer are computed
      net->on_first = [&](const at::Tensor& first) {
        first.register_hook([&](const at::Tensor&) { sent = bytes_scattered(group) - before; });
      };
      for (int64_t step = 0; step < chain_steps; ++step) {
        optimizer->zero_grad();
        before = bytes_scattered(group);
        net->loss(step, group.rank()).backward();
        EXPECT_EQ(sent > 0, step > 0 || net->uses_side) << "step " << step;
        optimizer->step();
      }
      expect_close(values_of(*net), expected, 1e-9);
    });
  }
}

constexpr int64_t passes = 3;

/// Rank 1 uses the side only in the first pass of a step, and rank 0 never.
bool accumulation_uses_side(int64_t rank, int64_t pass) {
  return rank == 1 && pass == 0;
}

std::vector<at::Tensor> accumulated_alone() {
  const auto net = std::make_shared<SideChain>();
  const OptimizerPtr optimizer = adamw()(net->parameters());
  for (int64_t step = 0; step < chain_steps; ++step) {
    optimizer->zero_grad();
    for (int64_t pass = 0; pass < passes; ++pass) {
      for (const int64_t rank : {0, 1}) {
        net->uses_side = accumulation_uses_side(rank, pass);
        (net->loss(step * passes + pass, rank) / 2).backward();
      }
    }
    optimizer->step();
  }
  return values_of(*net);
}

TEST(ZeroNoSync, ExchangesTheSumOfSeveralPasses) {
  const std::vector<at::Tensor> expected = accumulated_alone();
  for (const int stage : {2, 3}) {
    SCOPED_TRACE(stage);
    run_ranks(2, [&](const comm::Group& group) {
      const auto net = std::make_shared<SideChain>();
      const auto optimizer =
          zero_optimizer(adamw()(net->parameters()), Model::of(net), group, {.stage = stage, .bucket_bytes = 1});
      const auto backward = [&](int64_t step, int64_t pass) {
        net->uses_side = accumulation_uses_side(group.rank(), pass);
        if (stage == 3) optimizer->gather_parameters();  // the ranks use different parameters
        net->loss(step * passes + pass, group.rank()).backward();
      };
      for (int64_t step = 0; step < chain_steps; ++step) {
        optimizer->zero_grad();
        const int64_t before = bytes_scattered(group);
        {
          const auto guard = optimizer->no_sync();
          std::shared_ptr<void> nested = optimizer->no_sync();
          nested.reset();
          for (int64_t pass = 0; pass + 1 < passes; ++pass) backward(step, pass);
        }
        EXPECT_EQ(bytes_scattered(group), before);
        backward(step, passes - 1);
        EXPECT_GT(bytes_scattered(group), before);
        for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
        optimizer->step();
      }
      optimizer->with_full_parameters([&] { expect_close(values_of(*net), expected, 1e-9); });
    });
  }
}

TEST(ZeroNoSync, AStepNeedsAnExchange) {
  run_ranks(2, [&](const comm::Group& group) {
    const auto net = std::make_shared<SideChain>();
    const auto optimizer = zero_optimizer(sgd()(net->parameters()), Model::of(net), group, {.stage = 2});
    {
      const auto guard = optimizer->no_sync();
      net->loss(0, group.rank()).backward();
    }
    EXPECT_THAT(message_of([&] { optimizer->step(); }),
                ::testing::HasSubstr("was not exchanged, because each backward() ran inside no_sync()"));
    net->loss(1, group.rank()).backward();
    optimizer->step();
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::zero
