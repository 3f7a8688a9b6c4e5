// docs/strategies.md: what a step sends, and what a rank holds, against counters.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/optim/optimizers.h"
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

}  // namespace
}  // namespace bellows::parallel::testing
