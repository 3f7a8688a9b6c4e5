// A training step on two ranks in which an allocation fails: the caller catches the error and continues.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <optional>

#include "bellows/optim/optimizers.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/ranks.h"
#include "tests/support/failing_allocation.h"
#include "tests/support/slow_tests.h"

namespace bellows::parallel::testing {
namespace {

constexpr int last_step = 5, failing_step = 2;

struct Ended {
  std::vector<at::Tensor> weights;
  int errors = 0;      ///< that the caller caught
  bool fired = false;  ///< an allocation failed
};

/// One rank's training: without state in the optimizer, every step from the same data.
class Training {
 public:
  Training(const comm::Group& group, int stage)
      : model_(make_model<Layers>().first), x_(numbers({4, 6}, 7 + static_cast<uint64_t>(group.rank()))) {
    if (stage < 2) ddp_.emplace(model_, group, DistributedOptions{.bucket_bytes = 900, .first_bucket_bytes = 120});
    optimizer_ = std::make_shared<optim::SGD>(model_.parameters(), optim::SGDOptions{.lr = 0.1});
    if (stage > 0) optimizer_ = zero_optimizer(optimizer_, model_, group, {.stage = stage, .bucket_bytes = 600});
  }
  void step() {
    optimizer_->zero_grad();
    loss_of(ddp_ ? ddp_->forward(x_) : model_.forward(x_)).backward();
    optimizer_->step();
  }
  std::vector<at::Tensor> weights() const { return copies(model_.parameters()); }

 private:
  Model model_;
  at::Tensor x_;
  std::optional<DistributedDataParallel> ddp_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
};

/// Params: k – the allocation that fails; failing – on how many ranks, from rank 1 down; steps – that are made
struct Fault {
  int64_t k = 0;
  int failing = 0;
  int steps = last_step + 1;
};

Ended train_rank(const comm::Group& group, int stage, const Fault& fault) {
  Ended end;
  Training training(group, stage);
  for (int step = 0; step < fault.steps && end.errors < 2; ++step) {
    std::optional<test::FailAllocation> guard;
    if (step == failing_step && group.rank() >= 2 - fault.failing) guard.emplace(fault.k);
    try {
      training.step();
    } catch (const std::exception&) {
      ++end.errors;
    }
    end.fired |= guard && guard->fired();
  }
  end.weights = training.weights();
  return end;
}

std::vector<Ended> train(int stage, const Fault& fault) {
  std::vector<Ended> ends(2);
  run_ranks(
      2, [&](const comm::Group& group) { ends[static_cast<size_t>(group.rank())] = train_rank(group, stage, fault); },
      /*timeout_s=*/10);
  return ends;
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return true;
}

/// Every rank got an error that goes beyond its own failed allocation, or all hold weights of whole steps.
void expect_no_silent_divergence(const std::vector<Ended>& ends, const std::vector<std::vector<at::Tensor>>& allowed) {
  const bool told = (ends[0].errors > 0 && ends[1].errors > 0) || ends[0].errors > 1 || ends[1].errors > 1;
  const bool equal = same(ends[0].weights, ends[1].weights);
  if (told && !equal) {
    EXPECT_TRUE(ends[0].errors > (ends[0].fired ? 1 : 0) || ends[1].errors > (ends[1].fired ? 1 : 0))
        << "different weights, and no error but that of the allocation";
    return;
  }
  EXPECT_TRUE(equal) << "the ranks diverged: errors " << ends[0].errors << ", " << ends[1].errors;
  bool known = false;
  for (const auto& weights : allowed) known |= same(ends[0].weights, weights);
  EXPECT_TRUE(known || ends[0].errors > 1) << "weights of no whole number of steps";
}

std::vector<std::vector<at::Tensor>> weights_of_whole_steps(int stage) {
  std::vector<std::vector<at::Tensor>> allowed;
  for (int steps = failing_step; steps <= last_step + 1; ++steps)
    allowed.push_back(train(stage, {.k = 0, .failing = 0, .steps = steps})[0].weights);
  return allowed;
}

/// Allocations up to the 300th, at first each and then each fifth, on the same connections, made anew after a rank reported an error of its own.
void fail_each_allocation_on_both(int stage) {
  const auto allowed = weights_of_whole_steps(stage);
  std::atomic<int64_t> next = 1;
  while (next <= 300) {
    std::vector<Ended> ends(2);
    std::barrier both(2);
    run_ranks(
        2,
        [&](const comm::Group& group) {
          for (bool clean = true; clean && next <= 300;) {
            const int64_t k = next;
            Ended& own = ends[static_cast<size_t>(group.rank())];
            own = train_rank(group, stage, {.k = k, .failing = 2});
            both.arrive_and_wait();
            clean = ends[0].errors < 2 && ends[1].errors < 2;
            both.arrive_and_wait();
            if (group.rank() == 0) {
              SCOPED_TRACE(c10::str("ZeRO stage ", stage, ", allocation ", k));
              expect_no_silent_divergence(ends, allowed);
              next = ends[1].fired ? k + (k < 30 || slow_tests() ? 1 : 5) : 301;
            }
            both.arrive_and_wait();
          }
        },
        /*timeout_s=*/10);
  }
}

TEST(FailedAllocations, OnBothRanksDivergeNone) {
  for (const int stage : {0, 1, 2, 3}) fail_each_allocation_on_both(stage);
}

// Without stage 3, whose weights no rank can read alone.
TEST(FailedAllocations, OnOneRankDivergeNoneSilently) {
  for (const int stage : {0, 1, 2}) {
    const auto allowed = weights_of_whole_steps(stage);
    for (int64_t k = 1; k <= 300; k += slow_tests() ? 1 : 23) {
      SCOPED_TRACE(c10::str("ZeRO stage ", stage, ", allocation ", k));
      const std::vector<Ended> ends = train(stage, {.k = k, .failing = 1});
      expect_no_silent_divergence(ends, allowed);
      if (!ends[1].fired) break;
    }
  }
}

}  // namespace
}  // namespace bellows::parallel::testing
