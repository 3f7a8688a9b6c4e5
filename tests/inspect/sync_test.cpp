#include "bellows/inspect/sync.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include "bellows/core/log.h"
#include "fake_device.h"

using bellows::inspect::SyncAction;
using bellows::inspect::SyncDetector;
using testing::HasSubstr;

namespace a_users_step {

[[gnu::noinline]] double reads_the_loss(const at::Tensor& loss) {
  const double value = loss.item<double>();
  return value + 1;
}

class MemorySink : public bellows::LogSink {
 public:
  void write(bellows::LogLevel, std::string_view message) override { messages.emplace_back(message); }
  std::vector<std::string> messages;
};

/// A function that waits exactly once, and the operator that is named for it.
struct Case {
  const char* op;
  const char* reason;
  std::function<void()> call;
};

std::vector<Case> waiting_calls() {
  const at::Tensor x = at::arange(6), mask = x > 2;
  return {
      {"aten::item", "reads a value", [x] { x[0].item<int64_t>(); }},
      {"aten::item", "reads a value", [x] { (void)at::is_nonzero(x[0]); }},
      {"aten::equal", "reads a value", [x] { (void)at::equal(x, x); }},
      {"aten::nonzero", "shape depends", [x] { at::nonzero(x); }},
      {"aten::masked_select", "shape depends", [x, mask] { at::masked_select(x, mask); }},
      {"aten::_unique2", "shape depends", [x] { at::_unique2(x); }},
      {"aten::nonzero", "shape depends", [x, mask] { x.index({mask}); }},
      {"aten::repeat_interleave", "shape depends", [x] { at::repeat_interleave(x); }},
  };
}

TEST(SyncDetector, FindsEachKindOnce) {
  for (const Case& waits : waiting_calls()) {
    const SyncDetector detector({.action = SyncAction::count});
    waits.call();
    ASSERT_EQ(detector.events().size(), 1u) << waits.op << "\n" << detector.to_text();
    EXPECT_EQ(detector.events()[0].op, waits.op);
    EXPECT_THAT(detector.events()[0].reason, HasSubstr(waits.reason));
    EXPECT_EQ(detector.count(), 1) << waits.op;
  }
}

TEST(SyncDetector, DoesNotMindOperatorsThatOnlyCompute) {
  const SyncDetector detector({.action = SyncAction::error});
  const at::Tensor x = at::ones({8, 4}).requires_grad_();
  at::linear(x, at::ones({3, 4})).softmax(1).sum().backward();
  x.detach().clone().to(at::kDouble).index({at::arange(3)});
  at::repeat_interleave(at::ones({2}, at::kLong), std::optional<int64_t>(2));
  EXPECT_EQ(detector.count(), 0);
  EXPECT_EQ(detector.to_text(), "no implicit synchronization\n");
}

TEST(SyncDetector, CountsByCallSiteAndNamesIt) {
  const SyncDetector detector({.action = SyncAction::count});
  const at::Tensor loss = at::ones({});
  for (int i = 0; i < 3; ++i) reads_the_loss(loss);
  loss.item<float>();
  const auto events = detector.events();
  ASSERT_EQ(events.size(), 2u) << detector.to_text();
  EXPECT_EQ(events[0].count, 3);
  EXPECT_THAT(events[0].site, HasSubstr("a_users_step::reads_the_loss"));
  EXPECT_THAT(detector.to_text(),
              HasSubstr("3 × aten::item reads a value on the host, called at a_users_step::reads_the_loss"));
}

TEST(SyncDetector, WarnsOncePerPlace) {
  auto sink = std::make_shared<MemorySink>();
  const auto before = bellows::set_log_sink(sink);
  {
    const SyncDetector detector;
    for (int i = 0; i < 5; ++i) reads_the_loss(at::ones({}));
    EXPECT_EQ(detector.count(), 5);
  }
  bellows::set_log_sink(before);
  ASSERT_EQ(sink->messages.size(), 1u);
  EXPECT_THAT(sink->messages[0], HasSubstr("implicit synchronization: aten::item"));
}

TEST(SyncDetector, ErrorReachesTheCallerAndTheNextOperatorWorks) {
  SyncDetector detector({.action = SyncAction::error});
  const at::Tensor loss = at::full({}, 2.0);
  for (int round = 0; round < 2; ++round) {
    try {
      reads_the_loss(loss);
      FAIL() << "expected an error";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("SyncDetector: implicit synchronization: aten::item reads a value on the host"));
      EXPECT_THAT(error.what(), HasSubstr("a_users_step::reads_the_loss"));
    }
    EXPECT_TRUE((loss + 1).defined());
  }
  EXPECT_EQ(detector.count(), 2);
  detector.reset();
  EXPECT_EQ(detector.count(), 0);
}

TEST(SyncDetector, ErrorEndsWithTheGuard) {
  { const SyncDetector detector({.action = SyncAction::error}); }
  EXPECT_EQ(reads_the_loss(at::ones({})), 2);
}

TEST(SyncDetector, CopyFromTheDeviceToTheHostWaits) {
  const at::Tensor x = bellows::test::ones_on_fake_device({4});
  const SyncDetector detector({.action = SyncAction::count, .cpu = false});
  x.to(at::kCPU);
  ASSERT_EQ(detector.count(), 1) << detector.to_text();
  EXPECT_EQ(detector.events()[0].op, "aten::_to_copy");
  EXPECT_EQ(detector.events()[0].reason, "copies from fake:0 to the host");
  at::Tensor host = at::empty({4});
  host.copy_(x);
  EXPECT_EQ(detector.count(), 2);
  host.copy_(x, /*non_blocking=*/true);
  EXPECT_EQ(detector.count(), 2) << "a copy that does not wait";
  at::ones({4}).to(bellows::test::fake_device);
  EXPECT_EQ(detector.count(), 2) << "a copy to the device";
}

TEST(SyncDetector, CpuTensorsCanBeLeftOut) {
  const SyncDetector detector({.action = SyncAction::count, .cpu = false});
  reads_the_loss(at::ones({}));
  EXPECT_EQ(detector.count(), 0);
}

/// Its backward copies from the device on autograd's worker thread for that device.
at::Tensor on_device(const at::Tensor& x) {
  return x.to(bellows::test::fake_device);
}

TEST(SyncDetector, SeesAutogradsWorkerThreads) {
  const at::Tensor x = at::ones({4}).requires_grad_();
  const SyncDetector detector({.action = SyncAction::count, .cpu = false});
  on_device(x).backward(bellows::test::ones_on_fake_device({4}));
  EXPECT_EQ(detector.count(), 1) << detector.to_text();
  EXPECT_EQ(x.grad().sum().item<float>(), 4);
}

TEST(SyncDetector, ErrorOnAWorkerThreadLeavesBackward) {
  const at::Tensor x = at::ones({4}).requires_grad_(), grad = bellows::test::ones_on_fake_device({4});
  {
    const SyncDetector detector({.action = SyncAction::error, .cpu = false});
    const at::Tensor y = on_device(x);
    try {
      y.backward(grad);
      FAIL() << "expected an error";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("copies from fake:0 to the host"));
    }
  }
  on_device(x).backward(grad);
  EXPECT_EQ(x.grad().sum().item<float>(), 4);
}

}  // namespace a_users_step
