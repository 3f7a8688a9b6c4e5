// Training on three nodes whose network is slow, cut, or loses a node.
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>

#include "tests/support/network.h"
#include "training_job.h"

namespace bellows::testing {

namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Steady = std::chrono::steady_clock;

/// A launcher and a rank on each of three nodes.
class NodesJob {
 public:
  NodesJob(const std::string& kind, std::vector<std::string> options, const std::vector<std::string>& settings)
      : network(make_network(kind, 3)), options_(std::move(options)), settings_(settings) {
    options_.insert(options_.begin(), {"-n", "1", "--nnodes", "3"});
  }
  ~NodesJob() {
    for (auto& node : nodes) node.reset();
    expect_no_process_left(scratch.path());
  }
  NodesJob(const NodesJob&) = delete;
  NodesJob& operator=(const NodesJob&) = delete;

  void start(int node) {
    nodes[node].reset();
    nodes[node] =
        std::make_unique<cli::Process>(network->on_node(node, training_job(options_, scratch.path(), settings_)));
  }
  void start_all() {
    for (int node = 0; node < 3; ++node) start(node);
  }
  bool wait_for(int node, const std::string& words, double seconds = 30) {
    return nodes[node]->wait_until(
        [&](const cli::Outcome& so_far) { return (so_far.out + so_far.err).find(words) != std::string::npos; },
        seconds);
  }
  cli::Outcome finish(int node) { return nodes[node]->finish(60); }

  const cli::Scratch scratch;
  std::unique_ptr<Network> network;
  std::unique_ptr<cli::Process> nodes[3];

 private:
  std::vector<std::string> options_, settings_;
};

double seconds_after(Steady::time_point start) {
  return std::chrono::duration<double>(Steady::now() - start).count();
}

/// Ranks 0 and 1 say that rank 2 is missing, and rank 2 that it sees neither.
void expect_named(int rank, const std::string& err) {
  const std::string start = "#[0-9]+ [^#\n]* failed on rank " + std::to_string(rank) + ", group world[^:]*: ";
  EXPECT_THAT(
      err,
      ContainsRegex(
          start +
          (rank == 2
               ? "The job's store does not answer: .* rank 2 cannot reach it, and therefore cannot reach rank 0, 1\\."
               : "Rank 2 \\(pid [0-9]+ on [^)]*\\) sends no heartbeat")));
}

/// All in the slow tests, else the nearest to the real thing.
std::vector<std::string> kinds() {
  const auto all = network_kinds();
  return slow_tests() ? all : std::vector{all.back()};
}

/// The slow tests' own.
std::vector<std::string> slow_kinds() {
  return slow_tests() ? network_kinds() : std::vector<std::string>();
}

class NetworkFaults : public ::testing::TestWithParam<std::string> {};
class NetworkFaultsSlow : public NetworkFaults {};

}  // namespace

TEST_P(NetworkFaults, ASlowOneGivesTheSameBits) {
  NodesJob job(GetParam(), {}, {});
  job.network->slow_down();
  job.start_all();
  for (int node = 0; node < 3; ++node) {
    const auto outcome = job.finish(node);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const size_t at = outcome.out.find("trained in ");
    ASSERT_NE(at, std::string::npos);
    EXPECT_GT(std::stod(outcome.out.substr(at + 11)), 0.3) << "12 steps send 400 kB: the network was not slow";
  }
  expect_same_bits(job.scratch.path(), 12, Exchange::sockets);
}

TEST_P(NetworkFaults, APartitionIsNamedOnBothSidesAndWhenItHealsTheJobGoesOn) {
  NodesJob job(GetParam(), {"--node-timeout", "10", "--max-restarts", "1"}, {"timeout_s=2", "steps=40", "pause_ms=20"});
  job.start_all();
  ASSERT_TRUE(job.wait_for(2, "step 5\n"));
  job.network->cut(2);
  EXPECT_TRUE(job.wait_for(2, "failed on rank 2"));
  EXPECT_TRUE(job.wait_for(0, "2 of 3 nodes are ready for the next round"));
  job.network->heal(2);
  for (int node = 0; node < 3; ++node) {
    const auto outcome = job.finish(node);
    EXPECT_EQ(outcome.exit_code, 0) << node << ": " << outcome.err;
    expect_named(node, outcome.err);
  }
  expect_same_bits(job.scratch.path(), 40, Exchange::sockets);
}

TEST_P(NetworkFaultsSlow, APartitionEndsAJobThatMayNotGoOn) {
  NodesJob job(GetParam(), {"--node-timeout", "12"}, {"timeout_s=3", "steps=1000", "pause_ms=20"});
  job.start_all();
  ASSERT_TRUE(job.wait_for(2, "step 5\n"));
  const auto start = Steady::now();
  job.network->cut(2);
  for (int node = 0; node < 3; ++node) {
    const auto outcome = job.finish(node);
    EXPECT_EQ(outcome.exit_code, 1) << node;
    expect_named(node, outcome.err);
  }
  EXPECT_LT(seconds_after(start), 40);
}

INSTANTIATE_TEST_SUITE_P(Kinds, NetworkFaults, ::testing::ValuesIn(kinds()),
                         [](const auto& kind) { return kind.param; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NetworkFaultsSlow);
INSTANTIATE_TEST_SUITE_P(Kinds, NetworkFaultsSlow, ::testing::ValuesIn(slow_kinds()),
                         [](const auto& kind) { return kind.param; });

TEST(LostNode, WithoutItTheOthersGoOn) {
  NodesJob job("proxy", {"--node-timeout", "2", "--max-restarts", "1", "--min-nodes", "2"},
               {"steps=60", "pause_ms=20"});
  job.start_all();
  ASSERT_TRUE(job.wait_for(1, "step 5\n"));
  job.nodes[1]->signal(SIGKILL);  // its ranks die with it
  EXPECT_EQ(job.finish(1).exit_code, -SIGKILL);
  const auto zero = job.finish(0), two = job.finish(2);
  EXPECT_EQ(zero.exit_code, 0) << zero.err;
  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_THAT(zero.err, ContainsRegex("launch: .* Restarting all 2 ranks \\(restart 1 of at most 1\\)"));
  EXPECT_THAT(two.out, ContainsRegex("\\[rank 1\\] goes on from step [1-9]"));
  EXPECT_THAT(two.out, HasSubstr("[rank 1] trained in ")) << "it was rank 2";
  EXPECT_EQ(checkpoints(job.scratch.path()).back(), "step-000000000060");
}

TEST(LostNode, StartedAgainInTimeItTakesPart) {
  NodesJob job("proxy", {"--node-timeout", "20", "--max-restarts", "1", "--min-nodes", "2"},
               {"steps=60", "pause_ms=20"});
  job.start_all();
  ASSERT_TRUE(job.wait_for(1, "step 5\n"));
  job.nodes[1]->signal(SIGKILL);
  EXPECT_EQ(job.finish(1).exit_code, -SIGKILL);
  job.start(1);
  for (int node = 0; node < 3; ++node) {
    const auto outcome = job.finish(node);
    EXPECT_EQ(outcome.exit_code, 0) << node << ": " << outcome.err;
  }
  expect_same_bits(job.scratch.path(), 60, Exchange::sockets);
}

TEST(LostNode, TooFewThatAreLeftEndTheJob) {
  NodesJob job("proxy", {"--node-timeout", "2"}, {"steps=1000", "pause_ms=20"});
  job.start_all();
  ASSERT_TRUE(job.wait_for(1, "step 5\n"));
  const auto start = Steady::now();
  job.nodes[0]->signal(SIGKILL);  // it keeps the store: nothing replaces it
  EXPECT_EQ(job.finish(0).exit_code, -SIGKILL);
  for (const int node : {1, 2}) {
    const auto outcome = job.finish(node);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("Node 0, which serves the store, has ended"));
  }
  EXPECT_LT(seconds_after(start), 20);
}

}  // namespace bellows::testing
