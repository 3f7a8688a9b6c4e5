// A process of ZeRO-3 that is stopped for longer than the timeout of collectives.
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "bellows/checkpoint/saved_checkpoint.h"
#include "bellows/checkpoint/sharded.h"
#include "bellows/core/error.h"
#include "tests/parallel/own_processes.h"
#include "tests/parallel/zero/blocks.h"

namespace bellows::parallel::testing::zero {
namespace {

using StoppedAction = std::function<void(ShardedBlocks&, const comm::World&, const std::string& folder)>;

/// Rank 1 of two stops itself between two actions. Rank 0 names it in the second one, and continues its process.
void expect_stopped_rank_is_named(const StoppedAction& first, const StoppedAction& second) {
  const auto body = [&](const comm::World& world, const std::string& folder) {
    std::string message;
    try {
      ShardedBlocks sharded(world, {.bucket_bytes = 1});
      first(sharded, world, folder);
      if (world.rank() == 1) {
        std::ofstream(folder + "/pid") << getpid();
        std::raise(SIGSTOP);
      }
      second(sharded, world, folder);
    } catch (const std::exception& error) {
      message = user_message(error);
    }
    if (world.rank() == 1) return;  // it may have failed, or not: the other rank gave up
    pid_t stopped = 0;
    std::ifstream(folder + "/pid") >> stopped;
    EXPECT_THAT(message,
                ::testing::ContainsRegex(c10::str(" failed on rank 0, group world[^:]*: Rank 1 \\(pid ", stopped,
                                                  " on [^)]*\\) is stopped \\(SIGSTOP or a debugger\\)")));
    if (stopped > 0) ::kill(stopped, SIGCONT);
  };
  parallel::testing::run_processes(
      2, body, {.timeout_s = 60, .rank_0_serves = true, .init = {.collective_timeout_s = 8, .warn_after_s = 1}});
}

TEST(ZeroStopped, ARankThatIsStoppedDuringAGatherIsNamed) {
  expect_stopped_rank_is_named(
      [](ShardedBlocks& sharded, const comm::World& world, const std::string&) { train(sharded, 2, world); },
      [](ShardedBlocks& sharded, const comm::World& world, const std::string&) { train(sharded, 1, world); });
}

// In the backward pass, after other gradients were sent. In stage 2, the other rank waits for its part of their means.
TEST(ZeroStopped, ARankThatIsStoppedDuringAReduceIsNamed) {
  const auto body = [](const comm::World& world, const std::string& folder) {
    const auto net = std::make_shared<Blocks>(4);
    const auto optimizer =
        zero_optimizer(sgd()(net->parameters()), Model::of(net), world, {.stage = 2, .units = {"blocks.*"}});
    const auto step = [&](int64_t number) {
      optimizer->zero_grad();
      loss_of(*net, number, world).backward();
      optimizer->step();
    };
    std::string message;
    try {
      step(0);
      if (world.rank() == 1) {
        std::ofstream(folder + "/pid") << getpid();
        net->first->weight.register_hook([](const at::Tensor& gradient) {
          std::raise(SIGSTOP);
          return gradient;
        });
      }
      step(1);
    } catch (const std::exception& error) {
      message = user_message(error);
    }
    if (world.rank() == 1) return;
    pid_t stopped = 0;
    std::ifstream(folder + "/pid") >> stopped;
    EXPECT_THAT(message, ::testing::ContainsRegex(c10::str("(reduce_scatter|all_reduce)[a-z_]* [A-Za-z]+\\[[0-9]+\\] ",
                                                           "failed on rank 0, group world/gradients: Rank 1 \\(pid ",
                                                           stopped, " on [^)]*\\) is stopped")));
    if (stopped > 0) ::kill(stopped, SIGCONT);
  };
  parallel::testing::run_processes(
      2, body, {.timeout_s = 60, .rank_0_serves = true, .init = {.collective_timeout_s = 8, .warn_after_s = 1}});
}

TEST(ZeroStopped, ARankThatIsStoppedDuringASaveIsNamedAndTheEarlierCheckpointIsWhole) {
  const auto save = [](ShardedBlocks& sharded, int64_t step, const comm::World& world, const std::string& folder) {
    const checkpoint::ShardedState state{
        .model = parts_of(sharded), .optimizer = sharded.optimizer->state_shards(), .step = step};
    checkpoint::save_sharded(c10::str(folder, "/step-", step), state, world);
  };
  const auto second = [&](ShardedBlocks& sharded, const comm::World& world, const std::string& folder) {
    try {
      save(sharded, 4, world, folder);
    } catch (const std::exception&) {
      if (world.rank() == 0) {
        EXPECT_NO_THROW(checkpoint::SavedCheckpoint(folder + "/step-2").verify());
        EXPECT_FALSE(std::filesystem::exists(folder + "/step-4"));
      }
      throw;
    }
  };
  expect_stopped_rank_is_named(
      [&](ShardedBlocks& sharded, const comm::World& world, const std::string& folder) {
        train(sharded, 2, world);
        save(sharded, 2, world, folder);
      },
      second);
}

}  // namespace
}  // namespace bellows::parallel::testing::zero
