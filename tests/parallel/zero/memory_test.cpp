// The peak memory of a rank with ZeRO-3, against the table in docs/strategies.md. Each rank is a process, whose allocator
// is counted.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/comm/mesh.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/step_in_backward.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "bellows/tap/allocator.h"
#include "tests/parallel/own_processes.h"

namespace bellows::parallel::testing {
namespace {

// Many small layers: the buckets in use, whose number differs from run to run, then need less than 5 % of the memory.
constexpr int64_t memory_width = 96, memory_layers = 160, memory_rows = 2;
constexpr double layer_bytes = 4.0 * memory_width * (memory_width + 1);

/// Peak of a step after the first ones, with AdamW. One layer is one bucket.
/// Params: replicas – number of copies of the model
///         in_backward – whether backward updates the parameters
int64_t peak_of_a_step(const comm::World& world, int replicas, bool in_backward) {
  tap::install_cpu_allocator();
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  torch::nn::Sequential layers;
  for (int64_t i = 0; i < memory_layers; ++i) layers->push_back(torch::nn::Linear(memory_width, memory_width));
  const Model model = Model::of(layers);
  const comm::Mesh mesh(world, {{"data", replicas}, {"shard", world.size() / replicas}});
  // With one rank per copy, stage 3 would not exchange parameters, either.
  ShardOptions options{.stage = replicas < world.size() ? 3 : 2, .bucket_bytes = 1, .units = {"*"}};
  if (replicas > 1) options.replicas = mesh.group("data");
  const auto optimizer = zero_optimizer(std::make_shared<optim::AdamW>(model.parameters(), optim::AdamWOptions{}),
                                        model, replicas > 1 ? mesh.group("shard") : world, options);
  const auto stepping = in_backward ? optim::step_in_backward(*optimizer) : nullptr;
  const at::Tensor x = torch::ones({memory_rows, memory_width});
  for (int step = 0; step < 4; ++step) {
    optimizer->zero_grad();
    if (step == 3) tap::reset_cpu_allocation_peak();
    model.forward(x).square().mean().backward();
    optimizer->step();
  }
  return tap::cpu_allocation_counters().peak_bytes - before;
}

/// Weights, gradients and two moments, divided by the ranks of a copy; two gathered buckets, and two buckets of
/// gradients, the middle of zero to four; the inputs of the layers.
/// Params: copies – number of divided buffers with the size of the parameters: 4, or 3 without gradients
double expected_peak(int shards, int copies) {
  const double sharded = copies * memory_layers * layer_bytes / shards;
  return sharded + 4 * layer_bytes + 4.0 * memory_layers * memory_rows * memory_width;
}

void expect_peak(int ranks, int replicas, bool in_backward = false) {
  run_processes(ranks, [&](const comm::World& world, const std::string&) {
    const double expected = expected_peak(ranks / replicas, in_backward ? 3 : 4);
    EXPECT_NEAR(static_cast<double>(peak_of_a_step(world, replicas, in_backward)), expected, 0.05 * expected);
  });
}

TEST(ZeroMemory, OfTwoRanksIsWhatTheTableSays) {
  expect_peak(2, 1);
}

TEST(ZeroMemory, OfFourRanksIsWhatTheTableSays) {
  expect_peak(4, 1);
}

TEST(ZeroMemory, OfTwoCopiesOnTwoRanksEachIsWhatTheTableSays) {
  expect_peak(4, 2);
}

TEST(ZeroMemory, StepsInBackwardNeedNoMemoryForGradients) {
  expect_peak(2, 1, /*in_backward=*/true);
}

// One rank per copy: each rank holds everything except the gradients.
TEST(ZeroMemory, StepsInBackwardOfDataParallelRanksNeedNoMemoryForGradients) {
  expect_peak(2, 2, /*in_backward=*/true);
}

}  // namespace
}  // namespace bellows::parallel::testing
