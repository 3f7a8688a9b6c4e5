#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "bellows/core/error.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"
#include "bench/support/streams.h"
#include "tests/support/errors.h"

namespace bellows::bench {

namespace {

std::vector<std::string> shell(const std::string& script) {
  return {"/bin/sh", "-c", script};
}

}  // namespace

TEST(Compare, SidesTakeTurnsAndWarmupIsDropped) {
  std::string order;
  const auto side = [&](const char* name, double seconds) {
    return Contestant{name, [&order, name, seconds](int64_t n) {
                        order += name;
                        return seconds * static_cast<double>(n);
                      }};
  };
  const Comparison result =
      compare({side("a", 1), side("b", 2), side("c", 4)}, {.units = 10, .windows = 2, .warmup = 1});
  EXPECT_EQ(order, "abcbcacab");
  EXPECT_EQ(result.ours().windows, (std::vector<double>{1, 1}));
  EXPECT_EQ(result.best_peer().name, "b");
  const Row row = time_row("work", "time", "ms", result, true);
  EXPECT_DOUBLE_EQ(row.ours, 1000);
  EXPECT_DOUBLE_EQ(row.ratio_to_best_peer, 2);
  EXPECT_EQ(row.peers.back(), (std::pair<std::string, double>{"c", 4000}));
  EXPECT_DOUBLE_EQ(rate_row("work", "rate", "samples/s", result, true, 32).ours, 32);
}

TEST(Compare, ChoosesUnitsThatFillTheWindow) {
  const Contestant side{"a", [](int64_t n) { return 1e-3 * static_cast<double>(n); }};
  EXPECT_EQ(compare({side}, {.window_s = 0.5, .windows = 2}).units, 500);
  EXPECT_THROW(compare({side}, {.windows = 1}), c10::ValueError);
  EXPECT_THROW(compare({}, {}), c10::ValueError);
}

TEST(Deadline, CountsDownToZero) {
  double now = 100;
  const Deadline deadline(10, [&] { return now; });
  EXPECT_EQ(deadline.left_s(), 10);
  now = 107;
  EXPECT_EQ(deadline.left_s(), 3);
  EXPECT_FALSE(deadline.over());
  now = 112;
  EXPECT_EQ(deadline.left_s(), 0);
  EXPECT_TRUE(deadline.over());
  EXPECT_FALSE(Deadline().over());
  EXPECT_TRUE(std::isinf(run_deadline().left_s())) << "without --quick there is no end";
}

TEST(Deadline, EndsAComparisonAfterTwoRounds) {
  double now = 0;
  int rounds = 0;
  const Contestant side{"a", [&](int64_t) { return now += 3, 3.0; }};
  const Comparison result = compare(
      {side}, {.units = 1, .windows = 100, .warmup = 1, .before_round = [&] { ++rounds; }, .deadline = Deadline(4, [&] {
                                                                                             return now;
                                                                                           })});
  EXPECT_EQ(result.ours().windows.size(), 2U);
  EXPECT_EQ(rounds, 3);
}

TEST(Deadline, ReportLeavesOutRowsThatTakeLongerThanIsLeft) {
  double now = 0;
  Report report("bench", {}, Deadline(20, [&] { return now; }));
  const auto row = [&](double seconds) {
    now += seconds;
    report.add({.work = "row", .equal = true});
  };
  ASSERT_TRUE(report.has_time_for("first"));
  row(8);
  EXPECT_TRUE(report.has_time_for("second")) << "12 s are left";
  row(5);
  testing::internal::CaptureStdout();
  EXPECT_FALSE(report.has_time_for("third")) << "the longest row took 8 s, 7 s are left";
  EXPECT_EQ(report.finish(), 0);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), testing::HasSubstr("skipped"));
  Report endless("bench", {}, Deadline());
  endless.add({.work = "row", .equal = true});
  EXPECT_TRUE(endless.has_time_for("second"));
}

// Each loop visits every element once, and what it counts are the bytes that it reads and writes.
TEST(Limits, StreamsMoveWhatTheyCount) {
  constexpr size_t length = 32 * 16, begin = 16, end = length - 16;
  alignas(64) static float memory[4][length];
  for (const StreamKernel& kernel : stream_kernels()) {
    SCOPED_TRACE(kernel.name);
    ASSERT_LE(kernel.arrays(), 4U);
    float* arrays[4] = {memory[0], memory[1], memory[2], memory[3]};
    for (float* array : arrays) std::fill(array, array + length, 1.0F);
    const float sum = run_stream(kernel, arrays, begin, end);
    const auto reads = static_cast<float>(kernel.reads);
    EXPECT_EQ(sum, kernel.updates + kernel.writes == 0 ? reads * (end - begin) : 0);
    for (size_t k = 0; k < kernel.arrays(); ++k) {
      const bool updated = k >= kernel.reads && k < kernel.reads + kernel.updates;
      const float expected = k < kernel.reads ? 1 : updated ? 1 + reads / 4 : reads;
      EXPECT_EQ(memory[k][begin], expected) << k;
      EXPECT_EQ(memory[k][end - 1], expected) << k;
      EXPECT_EQ(memory[k][begin - 1], 1) << k;
      EXPECT_EQ(memory[k][end], 1) << k;
    }
    EXPECT_EQ(kernel.bytes_moved(100), 400.0 * static_cast<double>(kernel.reads + 2 * kernel.updates + kernel.writes));
  }
}

TEST(Limits, LaterMeasurementsOnlyRaiseThem) {
  const double memory = memory_bytes_per_s(1 << 20);
  EXPECT_GT(memory, 0);
  EXPECT_GE(memory_bytes_per_s(1 << 20), memory);
  const double products = gemm_flops_per_s(at::kFloat);
  EXPECT_GT(products, 0);
  EXPECT_GE(gemm_flops_per_s(at::kFloat), products);
}

TEST(PeerProcess, AnswersLineByLine) {
  PeerProcess peer(shell("echo ready; while read -r word n; do echo \"$n\"; done"));
  EXPECT_DOUBLE_EQ(peer.run(7), 7);
  EXPECT_EQ(peer.ask("losses 1.5 2"), "1.5 2");
  EXPECT_THAT(peer.ask_numbers("losses 1.5 2"), testing::ElementsAre(1.5, 2));
  EXPECT_THAT(message_of([&] { peer.ask_numbers("losses many"); }),
              testing::HasSubstr("expected numbers for \"losses many\", got \"many\""));
}

TEST(PeerProcess, SilenceAndDeathAreErrors) {
  EXPECT_THAT(message_of([] { PeerProcess peer(shell("exit 3")); }),
              testing::HasSubstr("the process ended before it answered"));
  EXPECT_THAT(message_of([] { PeerProcess peer({"/no/such/program"}); }),
              testing::HasSubstr("the process ended before it answered"));
  EXPECT_THAT(message_of([] { PeerProcess peer(shell("echo hello; cat")); }), testing::HasSubstr("got \"hello\""));
  PeerProcess silent(shell("echo ready; exec sleep 100"));
  EXPECT_THAT(message_of([&] { silent.ask("run 1", 0.1); }), testing::HasSubstr("no answer to run 1 within 0.1 s"));
  EXPECT_THAT(message_of([&] { silent.ask("run 1", 0.1); }), testing::HasSubstr("the process has ended"));
}

// A process that owns a peer ends without its destructors: the peer is killed. It holds the pipe's last writing end
// then.
TEST(PeerProcess, DiesWithItsParent) {
  int alive[2];
  ASSERT_EQ(pipe(alive), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    new PeerProcess(shell("echo ready; exec sleep 1000"));
    _exit(0);
  }
  close(alive[1]);
  pollfd waiting{alive[0], POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, 60'000), 1) << "the peer still runs";
  char byte = 0;
  EXPECT_EQ(read(alive[0], &byte, 1), 0);
  EXPECT_EQ(waitpid(owner, nullptr, 0), owner);
  close(alive[0]);
}

}  // namespace bellows::bench
