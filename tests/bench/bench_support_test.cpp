#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bellows/core/error.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"
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
              testing::HasSubstr("ended while it was to answer"));
  EXPECT_THAT(message_of([] { PeerProcess peer({"/no/such/program"}); }),
              testing::HasSubstr("ended while it was to answer"));
  EXPECT_THAT(message_of([] { PeerProcess peer(shell("echo hello; cat")); }), testing::HasSubstr("got \"hello\""));
  PeerProcess silent(shell("echo ready; exec sleep 100"));
  EXPECT_THAT(message_of([&] { silent.ask("run 1", 0.1); }), testing::HasSubstr("no answer to run 1 within 0.1 s"));
  EXPECT_THAT(message_of([&] { silent.ask("run 1", 0.1); }), testing::HasSubstr("it has ended"));
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
