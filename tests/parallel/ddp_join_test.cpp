#include <gmock/gmock.h>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/ranks.h"

namespace bellows::parallel::testing {
namespace {

class ExactMean final : public GradientHook {
 public:
  at::Tensor mean(const GradientBucket& bucket, const comm::Group& group) override {
    return comm::all_reduce(bucket.flat, group, comm::Reduce::mean);
  }
  std::string describe() const override { return "exact"; }
};

/// Rank r of 3 has so many steps.
constexpr std::array<int, 3> counts = {2, 5, 3};

at::Tensor sample(int rank, int step) {
  return numbers({4, 6}, static_cast<uint64_t>(100 * rank + step));
}

/// A step of one process that does what the ranks with data do together.
void step_alone(const Model& model, torch::optim::SGD& optimizer, int step, bool divide_by_all) {
  optimizer.zero_grad();
  int present = 0;
  for (const int count : counts) present += step < count ? 1 : 0;
  for (int rank = 0; rank < 3; ++rank) {
    if (step < counts[static_cast<size_t>(rank)])
      (loss_of(model.forward(sample(rank, step))) / (divide_by_all ? 3 : present)).backward();
  }
  optimizer.step();
}

void expect_join_as_alone(DistributedOptions options, bool divide_by_all) {
  const auto [alone, module] = make_model<Layers>();
  auto optimizer = sgd(alone);
  for (int step = 0; step < 5; ++step) step_alone(alone, optimizer, step, divide_by_all);
  std::vector<std::vector<at::Tensor>> results(3);
  options.bucket_bytes = 900;
  options.first_bucket_bytes = 120;
  run_ranks(3, [&](const comm::Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const auto [model, own] = make_model<Layers>();
    const DistributedDataParallel ddp(model, group, options);
    auto own_optimizer = sgd(model);
    const auto own_steps = [&] {
      for (int step = 0; step < counts[rank]; ++step) {
        own_optimizer.zero_grad();
        loss_of(ddp.forward(sample(group.rank(), step))).backward();
        own_optimizer.step();
      }
    };
    ddp.join(own_steps, {.divide_by_all = divide_by_all});
    results[rank] = copies(model.parameters());
    own_optimizer.zero_grad();
    loss_of(ddp.forward(sample(0, 0))).backward();  // all together again: divided by all
    for (const at::Tensor& gradient : gradients_of(model)) results[rank].push_back(gradient);
  });
  optimizer.zero_grad();
  std::vector<at::Tensor> expected = copies(alone.parameters());
  loss_of(alone.forward(sample(0, 0))).backward();
  for (const at::Tensor& gradient : gradients_of(alone)) expected.push_back(gradient);
  for (const auto& result : results) expect_close(result, expected);
}

TEST(Join, RanksThatRunOutTakePartUntilAllAreDone) {
  expect_join_as_alone({}, true);
  expect_join_as_alone({}, false);
  expect_join_as_alone({.find_unused_parameters = true}, false);
  expect_join_as_alone({.static_graph = true}, true);
  expect_join_as_alone({.hook = std::make_shared<ExactMean>()}, true);
  expect_join_as_alone({.hook = std::make_shared<ExactMean>()}, false);
}

TEST(Join, WithAccumulationBuffersAndNoStepAtAll) {
  std::vector<std::vector<at::Tensor>> results(3);
  run_ranks(3, [&](const comm::Group& group) {
    const auto [model, own] = make_model<Layers>();
    own->register_buffer("running", at::full({2}, group.rank(), at::kDouble));
    const DistributedDataParallel ddp(model, group);
    ddp.join([&, &layers = own] {
      for (int step = 0; step < group.rank(); ++step) {  // rank 0 has nothing
        {
          const auto local = ddp.no_sync();
          loss_of(ddp.forward(sample(group.rank(), step))).backward();
        }
        loss_of(ddp.forward(sample(group.rank(), step))).backward();
        layers->named_buffers()["running"].add_(1);
      }
    });
    auto& result = results[static_cast<size_t>(group.rank())];
    result = copies(model.parameters());
    result.push_back(model.named_buffers().front().second.clone());
  });
  for (const auto& result : results) expect_equal(result, results.back());
  EXPECT_EQ(results[0].back()[0].item<double>(), 2);  // rank 0's 0, then two steps of rank 2
}

TEST(Join, AnErrorInAStepIsNotWaitedFor) {
  EXPECT_THROW(run_ranks(2,
                         [&](const comm::Group& group) {
                           const auto [model, own] = make_model<Layers>();
                           const DistributedDataParallel ddp(model, group);
                           ddp.join([&] {
                             TORCH_CHECK_VALUE(group.rank() == 1, "bad sample");
                             loss_of(ddp.forward(sample(1, 0))).backward();
                           });
                         }),
               c10::ValueError);
}

}  // namespace
}  // namespace bellows::parallel::testing
