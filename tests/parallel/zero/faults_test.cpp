// One rank of ZeRO-2 and ZeRO-3 that throws, or whose loss is NaN.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>

#include "tests/parallel/zero/blocks.h"

namespace bellows::parallel::testing::zero {
namespace {

using ::testing::ContainsRegex;

enum class FaultPhase { forward, backward };

/// Rank 1 of two has a fault in its third step. Returns the message of each rank.
std::vector<std::string> messages_of_fault(int stage, FaultPhase phase) {
  return messages_of_ranks(2, [&](const comm::Group& group) {
    const auto net = std::make_shared<Blocks>(4);
    const auto optimizer =
        zero_optimizer(sgd()(net->parameters()), Model::of(net), group, {.stage = stage, .units = {"blocks.*"}});
    for (int64_t step = 0; step < 4; ++step) {
      const bool faulty = group.rank() == 1 && step == 2;
      optimizer->zero_grad();
      if (faulty && phase == FaultPhase::forward) {
        net->first(rows(step, 1, 2));
        TORCH_CHECK_VALUE(false, "a bad sample");
      }
      const at::Tensor loss = loss_of(*net, step, group);
      if (faulty && phase == FaultPhase::backward) {
        // The gradients of the first layer come last.
        net->first->weight.register_hook([](const at::Tensor& gradient) {
          TORCH_CHECK_VALUE(false, "a bad gradient");
          return gradient;
        });
      }
      loss.backward();
      optimizer->step();
    }
  });
}

// The group of the call names the phase: parameters are gathered in forward, and gradients are exchanged in backward.
TEST(ZeroFaults, ARankThatThrowsInForwardIsNamed) {
  for (const int stage : {2, 3}) {
    SCOPED_TRACE(stage);
    const std::vector<std::string> texts = messages_of_fault(stage, FaultPhase::forward);
    EXPECT_EQ(texts[1], "a bad sample");
    const std::string call = stage == 3
                                 ? "all_gather[a-z_]* Double\\[[0-9]+\\] failed on rank 0, group world/parameters"
                                 : "reduce_scatter[a-z_]* Double\\[[0-9]+\\] failed on rank 0, group world/gradients";
    EXPECT_THAT(texts[0], ContainsRegex("^#[0-9]+ " + call + ": Rank 1 \\(.*its last call in this group was #[0-9]+ "));
  }
}

TEST(ZeroFaults, ARankThatThrowsInBackwardIsNamed) {
  for (const int stage : {2, 3}) {
    SCOPED_TRACE(stage);
    const std::vector<std::string> texts = messages_of_fault(stage, FaultPhase::backward);
    EXPECT_EQ(texts[1], "a bad gradient");
    EXPECT_THAT(texts[0], ContainsRegex("^#[0-9]+ [a-z_]+ Double\\[[0-9]+\\] failed on rank 0, group "
                                        "world/(gradients|parameters): Rank 1 \\("));
  }
}

// NaN is data: the ranks exchange it, and all of them hold it together.
TEST(ZeroFaults, NaNOfOneRankReachesAllRanks) {
  for (const int stage : {2, 3}) {
    SCOPED_TRACE(stage);
    std::vector<std::vector<at::Tensor>> values(2);
    run_ranks(2, [&](const comm::Group& group) {
      const auto net = std::make_shared<Blocks>(2);
      const auto optimizer =
          zero_optimizer(sgd()(net->parameters()), Model::of(net), group, {.stage = stage, .units = {"blocks.*"}});
      const double factor = group.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1;
      (loss_of(*net, 0, group) * factor).backward();
      optimizer->step();
      values[static_cast<size_t>(group.rank())] = values_of(*net);
    });
    for (const std::vector<at::Tensor>& of_rank : values) {
      for (const at::Tensor& value : of_rank) EXPECT_TRUE(value.isnan().all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace bellows::parallel::testing::zero
