// A rank fails in the backward pass of a step, and holds a part of the model or of its sequences: the other rank ends with
// an error that names the failed rank and the phase.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "bellows/core/error.h"
#include "tests/train/parallel/divided_ranks.h"

namespace bellows::train::divided_ranks {

namespace {

using parallel::testing::run_processes;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

struct DividedMethod {
  const char* name;
  const char* phase;  ///< a regular expression for the call or action that fails on rank 0
};

void PrintTo(const DividedMethod& method, std::ostream* out) {
  *out << method.name;
}

class DividedFaults : public ::testing::TestWithParam<DividedMethod> {};

Recipe faulty_recipe(const DividedMethod& method) {
  return divided_recipe(c10::str(method.name, ": 2"));
}

MakeJob faulty_job() {
  return language_job(0, /*tokens=*/8);
}

/// Changes the gradient of a parameter in the third step.
/// Params: first – the first parameter of this rank; otherwise, one in the middle
void train_with_fault(Job job, const comm::Group& group, bool fails, bool first,
                      const std::function<at::Tensor(const at::Tensor&)>& fault) {
  job.ranks = group;
  TrainLoop loop(std::move(job));
  const auto armed = std::make_shared<bool>(false);
  const std::vector<at::Tensor> own = parameters_of(loop.job().optimizers);
  if (fails) {
    own[first ? 0 : own.size() / 2].register_hook(
        [armed, fault](const at::Tensor& gradient) { return *armed ? fault(gradient) : gradient; });
  }
  loop.run_steps(2);
  *armed = true;
  loop.run_steps(2);
}

/// Rank 1 of two ranks in threads has a fault. Returns the message of each rank.
std::vector<std::string> messages_of_fault(const DividedMethod& method, bool first,
                                           const std::function<at::Tensor(const at::Tensor&)>& fault) {
  std::vector<Job> jobs = jobs_for(2, faulty_recipe(method), faulty_job());
  return parallel::testing::messages_of_ranks(2, [&](const comm::Group& group) {
    Job& job = jobs[static_cast<size_t>(group.rank())];
    train_with_fault(std::move(job), group, group.rank() == 1, first, fault);
  });
}

/// Rank 1 of two processes gets the signal. Rank 0 then kills a stopped process.
/// Params: limit_s – seconds from the start of training until rank 0 reports the error
void expect_signal_reported(const DividedMethod& method, int signal, double limit_s, const comm::InitOptions& init) {
  run_processes(2,
                [&](const World& world, const std::string&) {
                  const at::Tensor processes = comm::all_gather(at::full({1}, getpid(), at::kLong), world).flatten();
                  const auto victim = static_cast<pid_t>(processes[1].item<int64_t>());
                  const auto start = Clock::now();
                  const std::string message = error_of([&] {
                    train_with_fault(faulty_job()(faulty_recipe(method)), world, world.rank() == 1, false,
                                     [&](const at::Tensor& gradient) {
                                       raise(signal);
                                       return gradient;
                                     });
                  });
                  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), limit_s);
                  EXPECT_THAT(message,
                              AllOf(ContainsRegex(method.phase), HasSubstr(c10::str("Rank 1 (pid ", victim, " on "))));
                  if (signal == SIGSTOP) kill(victim, SIGKILL);
                },
                {.killed = 1, .rank_0_serves = true, .init = init});
}

}  // namespace

TEST_P(DividedFaults, AnExceptionOfOneRankEndsAllRanks) {
  const auto messages = messages_of_fault(GetParam(), false, [](const at::Tensor& gradient) {
    TORCH_CHECK_VALUE(false, "a bad gradient");
    return gradient;
  });
  EXPECT_THAT(messages[0], ContainsRegex(GetParam().phase));
  EXPECT_THAT(messages[0], AnyOf(HasSubstr("Rank 1 (pid "), HasSubstr("rank 1 failed in ")));
  EXPECT_THAT(messages[1], HasSubstr("a bad gradient"));
}

// The first gradient is checked in the same step. Others reach all ranks with the next loss.
TEST_P(DividedFaults, NaNOfOneRankEndsAllRanks) {
  const auto nan = [](const at::Tensor& gradient) {
    return at::full_like(gradient, std::numeric_limits<double>::quiet_NaN());
  };
  const auto at_once = messages_of_fault(GetParam(), true, nan), later = messages_of_fault(GetParam(), false, nan);
  const char* step = "a gradient became NaN or infinite at step 3";
  EXPECT_THAT(at_once[1], HasSubstr(step));
  EXPECT_THAT(at_once[0], AnyOf(HasSubstr(step), HasSubstr("Rank 1 (pid ")));
  for (const std::string& message : later) EXPECT_THAT(message, HasSubstr("the loss became NaN at step 4"));
  EXPECT_THAT(later[1], ContainsRegex("On rank 1: \"[a-z0-9_.]+\" of the model already contains it"));
}

TEST_P(DividedFaults, AKilledRankIsNamed) {
  expect_signal_reported(GetParam(), SIGKILL, 90, {.join_timeout_s = 60, .collective_timeout_s = 120});
}

TEST_P(DividedFaults, AStoppedRankIsNamedAfterTheTimeout) {
  expect_signal_reported(GetParam(), SIGSTOP, 60, {.join_timeout_s = 60, .collective_timeout_s = 8, .warn_after_s = 3});
}

INSTANTIATE_TEST_SUITE_P(
    In, DividedFaults,
    ::testing::Values(
        DividedMethod{"tensor", "failed on rank 0, group tensor\\[0,1\\]"},
        DividedMethod{"pipeline",
                      "rank 0 failed in (forward|backward) of micro-batch|rank 1 failed in backward of micro-batch"},
        DividedMethod{"context", "failed on rank 0, group (context\\[0,1\\]|world/gradients)"}),
    [](const auto& method) { return std::string(method.param.name); });

}  // namespace bellows::train::divided_ranks
