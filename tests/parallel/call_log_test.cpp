#include "bellows/comm/call_log.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "bellows/comm/collectives.h"
#include "bellows/inspect/trace.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/tap/observer.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/ranks.h"
#include "tests/support/errors.h"

namespace bellows::parallel::testing {
namespace {

using ::testing::HasSubstr;

/// The scopes that have ended, with their names and times.
class Scopes final : public tap::Observer {
 public:
  tap::ObserverNeeds needs() const override { return {.operators = false, .user_scopes = true, .times = true}; }
  void after(const tap::OpEvent& event) override {
    const std::lock_guard lock(mutex_);
    seconds_.emplace_back(event.name, (trace_now_us() - event.start_us) / 1e6);
  }
  double seconds(const std::string& name) const {
    const auto found = std::ranges::find(seconds_, name, &std::pair<std::string, double>::first);
    return found == seconds_.end() ? -1 : found->second;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<std::string, double>> seconds_;
};

TEST(CallLog, RecordsTheCallsOfAllGroupsAndTheWaits) {
  run_ranks(2, [](const comm::Group& group) {
    const comm::Group second = comm::duplicate(group, "second");
    comm::all_reduce(at::ones({4}), group);
    std::vector<comm::RecordedCall> calls;
    {
      const comm::CallLog log(group);
      const auto scopes = std::make_shared<Scopes>();
      const tap::ObserverGuard guard(scopes);
      if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(40));
      comm::all_reduce(at::ones({256}), group);
      comm::all_gather(at::ones({8}, at::kDouble), second);
      EXPECT_THAT(bellows::message_of([&] { const comm::CallLog other(second); }), HasSubstr("already has a log"));
      calls = log.calls();
      EXPECT_GE(scopes->seconds("wait: all_reduce"), group.rank() == 0 ? 0.02 : 0.0);
      EXPECT_GE(scopes->seconds("wait: all_gather"), 0);
    }
    ASSERT_EQ(calls.size(), 2u) << "calls before the log do not count";
    EXPECT_EQ(calls[0].name, "all_reduce");
    EXPECT_EQ(calls[0].group, "world");
    EXPECT_EQ(calls[0].bytes, 1024);
    EXPECT_EQ(calls[1].name, "all_gather");
    EXPECT_EQ(calls[1].group, "world/second");
    EXPECT_EQ(calls[1].bytes, 64);
    for (const comm::RecordedCall& call : calls) EXPECT_GT(call.end_us, call.start_us);
    EXPECT_GE(calls[0].end_us - calls[0].start_us, group.rank() == 0 ? 2e4 : 0.0) << "rank 0 waited for rank 1";
    EXPECT_TRUE(comm::CallLog(group).calls().empty()) << "a new log starts with an empty list";
  });
}

TEST(CallLog, GradientsAreWaitedForAtTheEndOfBackward) {
  run_ranks(2, [](const comm::Group& group) {
    const auto [model, module] = make_model<Layers>(uint64_t{1}, at::kDouble);
    const DistributedDataParallel ddp(model, group);
    const comm::CallLog log(group);
    const auto scopes = std::make_shared<Scopes>();
    const tap::ObserverGuard guard(scopes);
    const at::Tensor loss = loss_of(ddp.forward(part(numbers({12, 6}, 30), group.rank(), 2)));
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(40));
    {
      const inspect::TraceScope scope("backward");
      loss.backward();
    }
    const double waited = scopes->seconds("wait: gradients"), backward = scopes->seconds("backward");
    EXPECT_GE(waited, group.rank() == 0 ? 0.02 : 0.0);
    EXPECT_GE(backward, waited) << "it is nested";
    const std::vector<comm::RecordedCall> calls = log.calls();
    const auto exchange = std::ranges::find(calls, "all_reduce", &comm::RecordedCall::name);
    ASSERT_NE(exchange, calls.end());
    EXPECT_EQ(exchange->group, "world/gradients");
    int64_t bytes = 0;
    for (const at::Tensor& parameter : model.parameters()) bytes += static_cast<int64_t>(parameter.nbytes());
    EXPECT_EQ(exchange->bytes, bytes) << "the first step has one bucket";
  });
}

}  // namespace
}  // namespace bellows::parallel::testing
