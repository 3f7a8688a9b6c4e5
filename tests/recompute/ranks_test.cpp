#include <gmock/gmock.h>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/sync_batch_norm.h"
#include "tests/parallel/ranks.h"
#include "tests/recompute/support.h"

namespace bellows::recompute::testing {

namespace {

struct RankNet : torch::nn::Module {
  RankNet() {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i),
                                       torch::nn::Sequential(torch::nn::Linear(16, 32), torch::nn::BatchNorm1d(32),
                                                             torch::nn::GELU(), torch::nn::Linear(32, 16))));
    }
  }
  std::vector<torch::nn::Sequential> blocks;
};

/// Gradients and buffers of rank 1 of two, after two steps of two batches each.
std::vector<at::Tensor> distributed(const Call& call, const parallel::DistributedOptions& options,
                                    bool sync_batch_norm) {
  std::vector<std::vector<at::Tensor>> results(2);
  const auto body = [&](const comm::Group& group) {
    const auto net = std::make_shared<RankNet>();
    {
      const at::NoGradGuard no_grad;
      int64_t n = 0;
      for (at::Tensor& p : net->parameters())
        p.copy_(torch::arange(p.numel()).add(n += 7).mul(0.37).sin().view(p.sizes()) * 0.3);
    }
    const Model model("net", net, [&call, net = net.get()](const at::Tensor& x) {
      at::Tensor y = x;
      for (const auto& block : net->blocks)
        y = call([block = block](const at::Tensor& z) mutable { return block->forward(z); }, y);
      return y;
    });
    if (sync_batch_norm) parallel::convert_sync_batch_norm(model, group);
    const parallel::DistributedDataParallel ddp(model, group, options);
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = torch::arange(8 * 16).view({8, 16}).add(1000 * group.rank() + 31 * step).mul(0.11).sin();
      ddp.forward(x).pow(2).mean().backward();
    }
    auto& result = results[static_cast<size_t>(group.rank())];
    for (const at::Tensor& p : net->parameters()) result.push_back(p.grad().clone());
    for (const at::Tensor& b : net->buffers()) result.push_back(b.clone());
  };
  parallel::testing::run_ranks(2, body);
  return results[1];
}

}  // namespace

TEST(CheckpointOnRanks, GradientsOfTwoRanksAreTheSameBitForBit) {
  const parallel::DistributedOptions buckets{.bucket_bytes = 3000, .first_bucket_bytes = 500};
  const auto plain = distributed(plainly, buckets, false);
  EXPECT_EQ(first_difference(plain, distributed(checkpointed, buckets, false)), -1);
  const auto half = [](const Layer& block, const at::Tensor& x) { return checkpoint({.budget = 0.5}, block, x); };
  EXPECT_EQ(first_difference(plain, distributed(half, {.static_graph = true}, false)), -1);
}

TEST(CheckpointOnRanks, SynchronizedBatchNormTalksAgainAndCountsOnce) {
  const auto plain = distributed(plainly, {}, true);
  EXPECT_EQ(first_difference(plain, distributed(checkpointed, {}, true)), -1);
}

/// The schema of a collective does not say what it writes.
TEST(CheckpointOnRanks, WhatRanksAddUpIsNotAddedTwice) {
  const auto gradients = [](const Call& call) {
    std::vector<std::vector<at::Tensor>> results(2);
    parallel::testing::run_ranks(2, [&](const comm::Group& group) {
      const at::Tensor x = torch::arange(64 * 64).view({64, 64}).add(group.rank()).mul(0.11).sin().requires_grad_();
      const auto f = [&](const at::Tensor& y) {
        const at::Tensor scale = y.detach().sigmoid().mean(1, true);
        return (y.mm(y) * comm::all_reduce(scale, group)).tanh();
      };
      for (int step = 0; step < 2; ++step) call(f, x).square().sum().backward();
      results[static_cast<size_t>(group.rank())] = {x.grad()};
    });
    return results[1];
  };
  const auto plain = gradients(plainly);
  for (const double fraction : {0.25, 1.0}) {
    const auto some = [&](const Layer& f, const at::Tensor& x) { return checkpoint({.budget = fraction}, f, x); };
    EXPECT_EQ(first_difference(plain, gradients(some)), -1) << fraction;
  }
  const CheckpointRule all = [](const CheckpointOp&) { return CheckpointPolicy::must_save; };
  const auto saved = [&](const Layer& f, const at::Tensor& x) { return checkpoint({.policy = all}, f, x); };
  EXPECT_EQ(first_difference(plain, gradients(saved)), -1);
}

}  // namespace bellows::recompute::testing
