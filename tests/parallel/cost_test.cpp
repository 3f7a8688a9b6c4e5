// docs/strategies.md: what a step sends, and what a rank holds, against counters.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "bellows/optim/optimizers.h"
#include "bellows/parallel/data_parallel.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "tests/parallel/ranks.h"

namespace bellows::parallel::testing {
namespace {

struct Cost {
  double sent = 0;      ///< bytes of one step by each rank, as a ring sends them
  double state = 0;     ///< bytes of the optimizer's state
  double gradient = 0;  ///< bytes of gradients behind backward
};

double sent_by_ring(const comm::Group& group) {
  const double ranks = group.size();
  double bytes = 0;
  for (const auto& [name, traffic] : comm::traffic(group)) {
    const auto own = static_cast<double>(traffic.bytes);
    if (name == "all_reduce") bytes += 2 * (ranks - 1) / ranks * own;
    if (name == "reduce_scatter") bytes += (ranks - 1) / ranks * own;
    if (name == "all_gather") bytes += (ranks - 1) * own;
    if (name == "broadcast") bytes += own;
  }
  return bytes;
}

double state_bytes(torch::optim::Optimizer& optimizer) {
  if (auto* sharded = dynamic_cast<ShardedOptimizer*>(&optimizer)) return state_bytes(sharded->local());
  double bytes = 0;
  for (const auto& [key, state] : optimizer.state()) {
    const auto& adam = static_cast<const torch::optim::AdamWParamState&>(*state);
    bytes += static_cast<double>(adam.exp_avg().nbytes() + adam.exp_avg_sq().nbytes());
  }
  return bytes;
}

double gradient_bytes(const Model& model, torch::optim::Optimizer& optimizer) {
  double bytes = 0;
  for (const at::Tensor& parameter : model.parameters())
    if (parameter.grad().defined()) bytes += static_cast<double>(parameter.grad().nbytes());
  if (bytes > 0) return bytes;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& part : group.params())
      if (part.grad().defined()) bytes += static_cast<double>(part.grad().nbytes());
  return bytes;
}

constexpr int64_t cost_width = 250;
constexpr int64_t cost_layers = 5;
constexpr double cost_parameters = cost_layers * (cost_width * cost_width + cost_width);
constexpr int64_t bucket = 4 * cost_width * cost_width;  // one per layer

Cost cost_of(int stage, const comm::Group& group) {
  using namespace torch::nn;
  Sequential layers;
  for (int64_t i = 0; i < cost_layers; ++i) layers->extend(*Sequential(Linear(cost_width, cost_width), ReLU()));
  const Model model = Model::of(layers);
  std::shared_ptr<torch::optim::Optimizer> optimizer =
      std::make_shared<optim::AdamW>(model.parameters(), optim::AdamWOptions{});
  std::optional<DistributedDataParallel> ddp;
  if (stage < 2) ddp.emplace(model, group);
  if (stage > 0) optimizer = zero_optimizer(optimizer, model, group, {.stage = stage, .bucket_bytes = bucket});
  const at::Tensor x = at::ones({2, cost_width});
  Cost cost;
  double before = 0;
  for (int step = 0; step < 3; ++step) {  // buckets are made anew behind the first
    before = sent_by_ring(group);
    optimizer->zero_grad();
    (ddp ? ddp->forward(x) : model.forward(x)).sum().backward();
    cost.gradient = gradient_bytes(model, *optimizer);
    optimizer->step();
  }
  cost.sent = sent_by_ring(group) - before;
  cost.state = state_bytes(*optimizer);
  return cost;
}

TEST(Cost, IsWhatTheTableSays) {
  const double bytes = 4 * cost_parameters;
  for (const int ranks : {2, 3, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(c10::str("stage ", stage, " on ", ranks));
      std::vector<Cost> costs(static_cast<size_t>(ranks));
      run_ranks(ranks,
                [&](const comm::Group& group) { costs[static_cast<size_t>(group.rank())] = cost_of(stage, group); });
      const double share = 1.0 / ranks, wire = (ranks - 1.0) / ranks * bytes;
      // Backward of stage 3 finds the buckets of the last two layers in memory, and the first layer needs no gradient of
      // its input.
      constexpr double gathered_again = (cost_layers - 3.0) / cost_layers;
      const double sent = (stage == 1 ? 3 : stage == 3 ? 2 + gathered_again : 2) * wire;
      for (const Cost& cost : costs) {
        EXPECT_NEAR(cost.sent, sent, 0.01 * sent);
        EXPECT_NEAR(cost.state, 2 * bytes * (stage > 0 ? share : 1), 0.01 * bytes);
        EXPECT_NEAR(cost.gradient, bytes * (stage >= 2 ? share : 1), 0.01 * bytes);
      }
    }
  }
}

/// A small network with batch norm: 4 N bytes of parameters and B bytes of buffers.
Model normed_net() {
  using namespace torch::nn;
  return Model::of(Sequential(Linear(cost_width, cost_width), BatchNorm1d(cost_width), ReLU()));
}

int64_t bytes_in(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

/// The table of exchanges in docs/strategies.md.
TEST(Cost, ReplicasAndRanksExchangeWhatTheTableSays) {
  const Model model = normed_net();
  const int64_t weights = bytes_in(model.parameters()), buffers = bytes_in(model.buffers());
  for (const int count : {2, 4}) {
    SCOPED_TRACE(c10::str(count, " replicas or ranks"));
    DataParallel replicas(model, normed_net, std::vector<c10::Device>(static_cast<size_t>(count), at::kCPU));
    const auto loss = [](const Model& replica, const std::vector<at::Tensor>& part) {
      return replica.forward(part[0]).sum();
    };
    for (int step = 0; step < 2; ++step) replicas.backward({at::rand({16, cost_width})}, loss);
    EXPECT_EQ(replicas.exchanged().weights, 0) << "on one device, replicas share the weights";
    EXPECT_EQ(replicas.exchanged().gradients, 2 * (count - 1) * weights);
    EXPECT_EQ(replicas.exchanged().buffers, 2 * (count - 1) * buffers);

    std::vector<std::map<std::string, comm::Traffic>> steps(static_cast<size_t>(count));
    run_ranks(count, [&](const comm::Group& group) {
      const Model own = normed_net();
      DistributedDataParallel ddp(own, group);
      std::map<std::string, comm::Traffic> before;
      for (int step = 0; step < 3; ++step) {
        before = comm::traffic(group);
        ddp.forward(at::rand({16 / count, cost_width})).sum().backward();
      }
      auto& counted = steps[static_cast<size_t>(group.rank())];
      for (const auto& [name, traffic] : comm::traffic(group)) {
        const comm::Traffic made{traffic.calls - before[name].calls, traffic.bytes - before[name].bytes};
        if (made.calls > 0) counted[name] = made;
      }
    });
    for (const auto& step : steps) {
      for (const auto& [name, made] : step) {
        const bool known = name == "all_reduce" || name == "broadcast";
        EXPECT_TRUE(known || made.bytes <= 16)
            << name << ": " << made.bytes << " bytes, more than a number of each rank";
      }
      EXPECT_EQ(step.at("all_reduce").calls, 1) << "one bucket";
      EXPECT_EQ(step.at("all_reduce").bytes, weights);
      EXPECT_EQ(step.at("broadcast").bytes, buffers);
    }
  }
}

}  // namespace
}  // namespace bellows::parallel::testing
