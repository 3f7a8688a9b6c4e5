#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "bellows/comm/world.h"
#include "bellows/recompute/partition.h"
#include "tests/comm/launched.h"
#include "tests/recompute/partition_support.h"

namespace bellows::recompute::testing {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor wave(const at::Tensor& x) {
  return x.sin().exp();
}

/// Steps of a checkpointed call. `input` returns the input of a rank.
void take_steps(const comm::Group& group, const PartitionOptions& options, int steps,
                const std::function<at::Tensor(int step, int rank)>& input) {
  const PartitionGuard guard(group, options);
  for (int step = 0; step < steps; ++step) {
    const at::Tensor x = input(step, group.rank()).requires_grad_();
    checkpoint(wave, x * 1).sum().backward();
  }
}

}  // namespace

TEST(PartitionErrors, NameTheTensorAndTheRankWhoseShapeDiffers) {
  const auto differ = [](const at::Tensor& other, int ranks = 3) {
    return messages_of_ranks(ranks, [&](const comm::Group& group) {
      take_steps(group, {.min_bytes = 1}, 3, [&](int step, int rank) {
        return step == 2 && rank == 1 ? other.clone() : formula({4, 6}, step);
      });
    });
  };
  for (const std::string& message : differ(formula({4, 7}, 2)))
    EXPECT_THAT(message, AllOf(HasSubstr("tensor 2 that checkpointed calls saved is Float [4, 6] on rank 0"),
                               HasSubstr("Float [4, 7] on rank 1 of group world/activations"), HasSubstr("`leave`")));
  for (const std::string& message : differ(formula({4, 6}, 2).to(at::kDouble)))
    EXPECT_THAT(message, HasSubstr("Double [4, 6] on rank 1"));
  for (const std::string& message : differ(formula({6, 4}, 2).t()))
    EXPECT_THAT(message, HasSubstr("Float [4, 6] with other strides on rank 1"));
}

TEST(PartitionErrors, FindOtherValuesInTheFirstPassOrWhenAsked) {
  const auto differ = [](int64_t first_other_step, bool check_values) {
    return messages_of_ranks(2, [&](const comm::Group& group) {
      take_steps(group, {.min_bytes = 1, .check_values = check_values}, 3, [&](int step, int rank) {
        at::Tensor x = formula({4, 6}, step);
        if (step >= first_other_step && rank == 1) x[3][5] += 1e-3;
        return x;
      });
    });
  };
  for (const std::string& message : differ(0, false))
    EXPECT_THAT(message, HasSubstr("tensor 0 (Float [4, 6]) that checkpointed calls saved has different values on "
                                   "rank 0 and rank 1"));
  for (const std::string& message : differ(2, true)) EXPECT_THAT(message, HasSubstr("tensor 2 (Float [4, 6])"));
  for (const std::string& message : differ(2, false)) EXPECT_EQ(message, "no error");
}

TEST(PartitionErrors, FindAnotherOrder) {
  const auto messages = messages_of_ranks(2, [](const comm::Group& group) {
    const PartitionGuard guard(group, {.min_bytes = 1});
    const at::Tensor x = formula({4, 6}, 0).requires_grad_();
    std::vector<at::Tensor> losses;
    losses.reserve(3);
    for (int i = 0; i < 3; ++i) losses.push_back(checkpoint(wave, x * (i + 1)).sum());
    for (const int i : {group.rank(), 1 - group.rank(), 2}) losses[static_cast<size_t>(i)].backward();
  });
  for (const std::string& message : messages)
    EXPECT_THAT(message, AllOf(HasSubstr("backward needs tensor 0 (Float [4, 6]) on rank 0, and tensor 1 ("),
                               HasSubstr("on rank 1 of group world/activations")));
}

TEST(PartitionErrors, OneRankFailsInForwardOrBackward) {
  for (const bool in_forward : {true, false}) {
    const auto messages = messages_of_ranks(3, [&](const comm::Group& group) {
      const PartitionGuard guard(group, {.min_bytes = 1});
      for (int step = 0; step < 3; ++step) {
        const at::Tensor x = formula({40, 6}, step).requires_grad_();
        at::Tensor y = x * 1;
        for (int block = 0; block < 4; ++block) {
          const auto function = [&, block, runs = std::make_shared<int>()](const at::Tensor& z) {
            const bool second = ++*runs > 1;
            TORCH_CHECK(step < 1 || group.rank() != 1 || block != 1 || second == in_forward, "no luck");
            return wave(z) * 0.1;
          };
          y = checkpoint(function, y);
        }
        y.sum().backward();
      }
    });
    EXPECT_THAT(messages[1], HasSubstr("no luck"));
    for (const size_t rank : {0, 2}) {
      EXPECT_THAT(messages[rank], HasSubstr("all_gather"));
      EXPECT_THAT(messages[rank], HasSubstr("rank")) << in_forward;
    }
  }
}

// The rank that cannot read its slice tells the others, which do not wait for it.
TEST(PartitionErrors, ASliceThatCannotBeProvided) {
  struct Broken final : tap::SavedTensorTap {
    struct Lost final : tap::PackedTensor {
      at::Tensor unpack() override { TORCH_CHECK(false, "the disk is gone"); }
    };
    std::shared_ptr<tap::PackedTensor> pack(const at::Tensor&) override { return std::make_shared<Lost>(); }
  };
  const auto messages = messages_of_ranks(3, [](const comm::Group& group) {
    std::optional<tap::SavedTensorGuard> broken;
    if (group.rank() == 2) broken.emplace(std::make_shared<Broken>());
    const PartitionGuard guard(group, {.min_bytes = 1});
    const at::Tensor x = formula({4, 6}, 0).requires_grad_();
    const at::Tensor loss = checkpoint(wave, x * 1).sum();
    loss.backward();
  });
  EXPECT_THAT(messages[2], HasSubstr("the disk is gone"));
  for (const size_t rank : {0, 1})
    EXPECT_THAT(messages[rank], HasSubstr("rank 2 of group world/activations cannot provide its slice"));
}

// A rank that catches its error and continues with the next step does not leave the others waiting.
TEST(PartitionErrors, ARankThatContinuesAfterAnError) {
  const auto messages = messages_of_ranks(2, [](const comm::Group& group) {
    const PartitionGuard guard(group, {.min_bytes = 1});
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = formula({4, 6}, step).requires_grad_();
      try {
        const at::Tensor y = checkpoint(wave, x * 1);
        if (step == 1 && group.rank() == 1) throw std::runtime_error("skipped");
        y.sum().backward();
      } catch (const std::runtime_error& error) {
        if (error.what() != std::string("skipped")) throw;
      }
    }
  });
  for (const std::string& message : messages) EXPECT_THAT(message, HasSubstr("backward needs tensor"));
}

TEST(PartitionErrors, SecondDerivativesAreRefused) {
  const auto messages = messages_of_ranks(2, [](const comm::Group& group) {
    const PartitionGuard guard(group, {.min_bytes = 1});
    const at::Tensor x = formula({4, 6}, 0).requires_grad_();
    torch::autograd::grad({checkpoint(wave, x * 1).sum()}, {x}, {}, true, /*create_graph=*/true);
  });
  for (const std::string& message : messages) EXPECT_THAT(message, HasSubstr("create_graph"));
}

/// What a process does in PartitionProcess below. Rank 1 dies in the backward pass of its third step.
void train_until_rank_1_dies() {
  const comm::World world = comm::init();
  const PartitionGuard guard(world, {.min_bytes = 1});
  for (int step = 0; step < 4; ++step) {
    at::Tensor y = formula({40, 6}, step).requires_grad_() * 1;
    for (int block = 0; block < 4; ++block) {
      y = checkpoint(
          [&world, step, block, runs = std::make_shared<int>()](const at::Tensor& z) {
            if (++*runs > 1 && step == 2 && block == 2 && world.rank() == 1) ::kill(::getpid(), SIGKILL);
            return wave(z) * 0.1;
          },
          y);
    }
    y.sum().backward();
  }
}

// The test runs itself in three processes.
TEST(PartitionProcess, TheOthersEndWhenARankDies) {
  if (std::getenv("RANK")) {
    EXPECT_EQ(message_of(train_until_rank_1_dies), "");
    return;
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  std::string folder = (std::filesystem::temp_directory_path() / "bellows-partition-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::vector<std::future<comm::testing::Alone>> ranks;
  ranks.reserve(3);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string command = c10::str("env -u BELLOWS_TOKEN OMP_NUM_THREADS=1 WORLD_SIZE=3 RANK=", rank,
                                         " BELLOWS_STORE=file://", folder, "/store") +
                                " timeout -k 1 200 " + self +
                                " --gtest_filter=PartitionProcess.TheOthersEndWhenARankDies 2>&1";
    ranks.push_back(std::async(std::launch::async, comm::testing::run_shell, command));
  }
  for (size_t rank = 0; rank < 3; ++rank) {
    const comm::testing::Alone outcome = ranks[rank].get();
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_NE(outcome.exit_code, 124) << "the rank hung";
    if (rank != 1) {
      EXPECT_THAT(outcome.text, AllOf(HasSubstr("all_gather"), HasSubstr("rank 1"))) << rank;
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace bellows::recompute::testing
