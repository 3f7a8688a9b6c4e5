#include <gmock/gmock.h>

#include <algorithm>

#include <map>

#include "bellows/comm/rendezvous/listen.h"
#include "bellows/comm/rendezvous/rendezvous.h"
#include "launched.h"
#include "tests/support/text.h"

namespace bellows::comm::testing {

namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Strings = std::vector<std::string>;

Strings shell(const std::string& script) {
  return {"sh", "-c", script};
}

/// The children of a launcher that are no ranks.
std::vector<int> helpers_of(int launcher) {
  const std::string id = std::to_string(launcher);
  std::ifstream children("/proc/" + id + "/task/" + id + "/children");
  std::vector<int> helpers;
  for (int child = 0; children >> child;) {
    std::ifstream name("/proc/" + std::to_string(child) + "/comm");
    std::string text;
    if (std::getline(name, text) && text == "bellows") helpers.push_back(child);
  }
  return helpers;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST(Launch, SetsTheEnvironmentOfTorchrun) {
  const auto outcome = launched(
      {"-n", "3"}, shell("echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR ${MASTER_PORT:+port} "
                         "$TORCHELASTIC_RESTART_COUNT $OMP_NUM_THREADS ${#BELLOWS_TOKEN}"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const std::string rank : {"0", "1", "2"})
    EXPECT_THAT(outcome.out, HasSubstr("[rank " + rank + "] " + rank + " 3 " + rank + " 3 127.0.0.1 port 0 1 32\n"));
}

TEST(Launch, NamesTheLimitOfOpenFiles) {
  cli::Launch launch = launch_of({"-n", "24"}, {"true"});
  launch.prefix = {"sh", "-c", "ulimit -n 64; exec \"$@\"", "sh"};
  const auto outcome = cli::Process(launch).finish(60);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, ::testing::AllOf(HasSubstr("launch: 24 ranks need at least "),
                                            HasSubstr("open files, but the limit of this process is 64 (ulimit -n).")));
}

TEST(Launch, SharesTheProcessorsOut) {
  const auto unset = launch_of({"-n", "2"}, shell("test $OMP_NUM_THREADS -ge 1"), {"OMP_NUM_THREADS="});
  EXPECT_EQ(cli::Process(unset).finish(60).exit_code, 0);
}

TEST(Launch, PrintsWholeLinesWithTheirRank) {
  const auto outcome =
      launched({"-n", "4"}, shell("for i in $(seq 300); do printf 'a%03d' $i; printf 'bcd%s\\n' $RANK; done; "
                                  "echo error $RANK >&2; printf 'no end'"));
  EXPECT_EQ(outcome.exit_code, 0);
  std::istringstream lines(outcome.out);
  std::string line;
  while (std::getline(lines, line)) {
    const std::string rank = line.substr(6, 1);
    EXPECT_THAT(line, ::testing::AnyOf("[rank " + rank + "] no end",
                                       ::testing::MatchesRegex("\\[rank " + rank + "\\] a[0-9][0-9][0-9]bcd" + rank)));
  }
  EXPECT_EQ(count_of(outcome.out, "\n"), 4u * 301);
  for (const std::string rank : {"0", "1", "2", "3"})
    EXPECT_THAT(outcome.err, HasSubstr("[rank " + rank + "] error " + rank));
}

TEST(Launch, EndsAllWhenOneFails) {
  const auto start = std::chrono::steady_clock::now();
  const auto outcome = launched(
      {"-n", "3"},
      shell("echo pid $$; if [ $RANK = 1 ]; then seq 100; exit 7; fi; trap '' TERM; while :; do sleep 1; done"));
  EXPECT_LT(seconds_since(start), 10);  // 5 on an idle machine
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_THAT(outcome.err, HasSubstr("bellows: rank 1 ended with exit code 7. Its last lines:\n  51\n  52\n"));
  EXPECT_THAT(outcome.err, HasSubstr("\n  100\n"));
  for (const int rank : {0, 2}) EXPECT_TRUE(ended(number_of_rank(outcome.out, rank, "pid")));
}

TEST(Launch, LeavesNoOrphans) {
  cli::Outcome seen;
  // Each rank has a child, which has another.
  const auto script = shell("sh -c 'sleep 1000 & echo inner $!; wait' & echo pid $$; wait");
  const auto ready = [&](const cli::Outcome& so_far) {
    seen = so_far;
    return count_of(so_far.out, "inner") == 2 && count_of(so_far.out, "pid") == 2;
  };
  const auto expect_all_ended = [&] {
    for (const int rank : {0, 1}) {
      for (const char* word : {"pid", "inner"})
        EXPECT_TRUE(ends_within(number_of_rank(seen.out, rank, word), 5)) << word;
    }
  };
  cli::Process killed(launch_of({"-n", "2"}, script));
  ASSERT_TRUE(killed.wait_until(ready));
  killed.signal(SIGKILL);
  EXPECT_EQ(killed.finish(10).exit_code, -SIGKILL);
  expect_all_ended();
  cli::Process interrupted(launch_of({"-n", "2"}, script));
  ASSERT_TRUE(interrupted.wait_until(ready));
  interrupted.signal(SIGTERM);
  EXPECT_EQ(interrupted.finish(10).exit_code, 128 + SIGTERM);
  expect_all_ended();
  const auto left = launched({"-n", "1"}, shell("sleep 1000 & echo inner $!"));
  EXPECT_EQ(left.exit_code, 0);
  EXPECT_TRUE(ends_within(number_of_rank(left.out, 0, "inner"), 5));
}

TEST(Launch, PassesSignalsOn) {
  const auto script = shell(
      "trap 'echo usr1' USR1; trap 'echo stopping; sleep 1; exit 0' TERM; echo ready; "
      "while :; do sleep 0.1; done");
  cli::Process job(launch_of({"-n", "2", "--max-restarts", "2"}, script));
  const auto has = [](const char* word) {
    return [=](const cli::Outcome& so_far) { return count_of(so_far.out, word) == 2; };
  };
  ASSERT_TRUE(job.wait_until(has("ready"), 20));
  job.signal(SIGUSR1);
  ASSERT_TRUE(job.wait_until(has("usr1"), 20));
  job.signal(SIGTERM);
  const auto outcome = job.finish(20);
  EXPECT_EQ(outcome.exit_code, 0) << "they ended in order: " << outcome.err;
  EXPECT_EQ(count_of(outcome.out, "stopping"), 2u) << "and had their time, and no new round";
}

TEST(Launch, AStopOfOneRankIsOneOfAll) {
  const std::string wait = "echo pid $$; while :; do sleep 0.1; done";
  for (const std::string trap : {"trap 'exit 143' TERM; ", ""}) {  // in its own time; at once
    cli::Process job(launch_of({"-n", "2", "--max-restarts", "2"}, shell(trap + wait)));
    cli::Outcome seen;
    ASSERT_TRUE(job.wait_until([&](const auto& so_far) { return seen = so_far, count_of(so_far.out, "pid") == 2; }));
    kill(number_of_rank(seen.out, 1, "pid"), SIGTERM);
    const auto outcome = job.finish(20);
    EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
    EXPECT_EQ(count_of(outcome.out, "pid"), 2u) << "no new round: " << outcome.err;
    EXPECT_THAT(outcome.err,
                ::testing::EndsWith(trap.empty() ? "stopped on request: rank 1 was killed by signal 15 (Terminated).\n"
                                                 : "stopped on request: rank 1 ended with exit code 143.\n"));
  }
}

TEST(Launch, ASecondRequestKills) {
  cli::Process job(launch_of({"-n", "2"}, shell("trap '' INT TERM; echo ready; while :; do sleep 0.1; done")));
  ASSERT_TRUE(job.wait_until([](const cli::Outcome& so_far) { return count_of(so_far.out, "ready") == 2; }, 20));
  job.signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  job.signal(SIGTERM);
  EXPECT_EQ(job.finish(5).exit_code, 128 + SIGKILL);
}

TEST(Launch, StartsAllAnewAfterAFailure) {
  const auto again = launched({"-n", "3", "--max-restarts", "2"}, {rank_program, "once"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err,
              HasSubstr("launch: rank 1 ended with exit code 9. Restarting all 3 ranks (restart 1 of at most 2)."));
  for (const std::string rank : {"0", "1", "2"}) EXPECT_THAT(again.out, HasSubstr("round 1 rank " + rank + " of 3\n"));
  EXPECT_THAT(again.err, HasSubstr("world of 3 ranks (bellows launch): gloo"));
  const auto fewer = launched({"-n", "3", "--max-restarts", "2", "--min-ranks", "2"}, {rank_program, "once"});
  EXPECT_EQ(fewer.exit_code, 0) << fewer.err;
  for (const std::string rank : {"0", "1"}) EXPECT_THAT(fewer.out, HasSubstr("round 1 rank " + rank + " of 2\n"));
  const auto never =
      launched({"-n", "2", "--max-restarts", "2"}, shell("echo try $TORCHELASTIC_RESTART_COUNT; exit 3"));
  EXPECT_EQ(never.exit_code, 3);
  EXPECT_THAT(never.out, HasSubstr("try 2\n"));
  EXPECT_THAT(never.out, Not(HasSubstr("try 3\n")));
}

TEST(Launch, ReplacementDoesNotEndRanksWithoutAnElasticWorld) {
  const Strings options = {"-n", "3", "--max-restarts", "1", "--replace-lost"};
  const auto done = launched(options, shell("if [ $RANK != 0 ]; then sleep 1; fi; echo done $RANK"));
  EXPECT_EQ(done.exit_code, 0) << done.err;
  for (const std::string rank : {"0", "1", "2"}) EXPECT_THAT(done.out, HasSubstr("done " + rank + "\n"));
  const auto failed = launched(options, shell("if [ $RANK != 0 ]; then sleep 1; exit 7; fi"));
  EXPECT_EQ(failed.exit_code, 7) << "after another rank has finished";
}

TEST(Launch, SeveralNodes) {
  const std::string port = std::to_string(free_port());
  const auto node = [&](const char* rank, const char* ranks, const Strings& command) {
    return launch_of(
        {"-n", ranks, "--nnodes", "2", "--node-rank", rank, "--rdzv", "127.0.0.1:" + port, "--max-restarts", "1"},
        command, {"BELLOWS_TOKEN=secret"});
  };
  {
    cli::Process second(node("1", "2", {rank_program, "once"})), first(node("0", "1", {rank_program, "once"}));
    const auto one = second.finish(60), zero = first.finish(60);
    EXPECT_EQ(zero.exit_code, 0) << zero.err;
    EXPECT_EQ(one.exit_code, 0) << one.err;
    EXPECT_THAT(zero.out, HasSubstr("[rank 0] round 1 rank 0 of 3\n"));
    EXPECT_THAT(one.out, HasSubstr("[rank 2] round 1 rank 2 of 3\n"));
  }
  cli::Process second(node("1", "1", shell("exit 5"))), first(node("0", "1", shell("sleep 1000")));
  const auto one = second.finish(60), zero = first.finish(60);
  EXPECT_EQ(zero.exit_code, 5) << "the first failure, of whatever node";
  EXPECT_THAT(zero.err, HasSubstr("bellows: rank 1 ended with exit code 5"));
  EXPECT_EQ(one.exit_code, 5);
}

TEST(Launch, WaitingForOtherNodesCanBeStopped) {
  const std::string place = "127.0.0.1:" + std::to_string(free_port());
  for (const char* rank : {"1", "0"}) {  // before node 0 is there; before node 1 is
    cli::Process node(launch_of({"-n", "1", "--nnodes", "2", "--node-rank", rank, "--rdzv", place}, {"true"},
                                {"BELLOWS_TOKEN=secret"}));
    ASSERT_TRUE(node.wait_for_handler(SIGCHLD));  // which only the launcher itself takes, together with SIGTERM
    node.signal(SIGTERM);
    const auto outcome = node.finish(60);
    EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
    EXPECT_THAT(outcome.err, HasSubstr("bellows: stopped on request: The launcher received a stop signal."));
  }
}

TEST(Launch, SaysAfterTenSecondsWhatItWaitsFor) {
  const int port = free_port();
  const std::string place = "127.0.0.1:" + std::to_string(port);
  const auto node = [&](const char* rank, const std::string& rendezvous) {
    return launch_of({"-n", "1", "--nnodes", "3", "--node-rank", rank, "--rdzv", rendezvous}, {"true"},
                     {"BELLOWS_TOKEN=secret"});
  };
  cli::Process zero(node("0", place)), two(node("2", "127.0.0.1:" + std::to_string(free_port()))),
      job(launch_of({"-n", "2"}, shell("trap '' TERM; echo pid $$; while :; do sleep 0.1; done")));
  const auto says = [](const std::string& text) {
    return [=](const cli::Outcome& so_far) { return count_of(so_far.err, text) == 1; };
  };
  ASSERT_TRUE(job.wait_until([](const cli::Outcome& so_far) { return count_of(so_far.out, "pid") == 2; }));
  job.signal(SIGTERM);
  EXPECT_TRUE(job.wait_until(says("launch: received SIGTERM and passed it to the ranks. Waiting for rank 0 (pid "), 9));
  EXPECT_TRUE(
      zero.wait_until(says("node 0 is waiting for node 1, node 2; 1 of 3 nodes are at " + place + " (10 s of")));
  EXPECT_TRUE(two.wait_until(says("node 2 is waiting for node 0 at 127.0.0.1:")));
  EXPECT_TRUE(job.wait_until(says("launch: node 0 is waiting for rank 0 (pid ")));
  job.signal(SIGTERM);
  EXPECT_EQ(job.finish(20).exit_code, 128 + SIGKILL);
  for (cli::Process* waiting : {&zero, &two}) {
    waiting->signal(SIGTERM);
    EXPECT_EQ(waiting->finish(20).exit_code, 128 + SIGTERM);
  }
}

TEST(Launch, ASignalEndsTheWaitForANodeThatDoesNotAnswer) {
  const Listener silent("127.0.0.1", 0);  // it accepts connections, and says nothing
  cli::Process node(launch_of(
      {"-n", "1", "--nnodes", "2", "--node-rank", "1", "--rdzv", "127.0.0.1:" + std::to_string(silent.port())},
      {"true"}, {"BELLOWS_TOKEN=secret"}));
  ASSERT_TRUE(node.wait_for_handler());
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  node.signal(SIGTERM);
  EXPECT_EQ(node.finish(60).exit_code, 128 + SIGTERM);
}

TEST(Launch, NodesThatWereToldOtherNumbersAreRefused) {
  const std::string place = "127.0.0.1:" + std::to_string(free_port());
  const auto node = [&](const char* nodes, const char* rank) {
    return launch_of({"-n", "1", "--nnodes", nodes, "--node-rank", rank, "--rdzv", place}, {"true"},
                     {"BELLOWS_TOKEN=secret"});
  };
  cli::Process first(node("2", "0")), other(node("3", "2"));
  const auto refused = other.finish(60);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err,
              HasSubstr("node 2 was started with --nnodes = 3, but node 0 with 2. Give all nodes the same"));
  EXPECT_EQ(cli::Process(node("2", "1")).finish(60).exit_code, 0);
  EXPECT_EQ(first.finish(60).exit_code, 0);
}

TEST(Launch, ADamagedEntryOfTheStoreIsNamed) {
  const std::map<std::string, std::string> damaged = {
      {"round", "first"}, {"0/members", "[[0,1"}, {"over", "{\"rank\":\"x\"}"}};
  for (const auto& [entry, text] : damaged) {
    const Store store = Store::serve("127.0.0.1", 0);
    const Store job = enter_job(store, "secret", "node 0").under("launch/");
    job.set("nodes", "2");
    job.set("round", "0");
    job.set(entry, text);
    cli::Process node(launch_of(
        {"-n", "1", "--nnodes", "2", "--node-rank", "1", "--rdzv", "127.0.0.1:" + std::to_string(store.port())},
        {"true"}, {"BELLOWS_TOKEN=secret"}));
    const auto outcome = node.finish(60);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("the store's entry \"" + entry + "\" is damaged: \"" + text + "\""));
  }
}

TEST(Launch, ReplacesAHelperProcessThatWasKilled) {
  const cli::Scratch folder;
  const std::string ready = folder / "killed";
  // Round 0 fails after its helper was killed, which leads to a restart; round 1 succeeds after its helper was killed.
  const auto script = shell("echo pid $$ launcher $PPID; while [ ! -e " + ready + "$TORCHELASTIC_RESTART_COUNT ]; do " +
                            "sleep 0.05; done; test $TORCHELASTIC_RESTART_COUNT = 1");
  cli::Process job(launch_of({"-n", "2", "--max-restarts", "1"}, script));
  for (const size_t round : {0, 1}) {
    cli::Outcome seen;
    ASSERT_TRUE(job.wait_until([&](const cli::Outcome& so_far) {
      return seen = so_far, count_of(so_far.out, "launcher") == 2 * (round + 1);
    }));
    const int launcher = std::stoi(seen.out.substr(seen.out.find("launcher ") + 9));
    const std::vector<int> helpers = helpers_of(launcher);
    ASSERT_EQ(helpers.size(), 1u);
    kill(helpers.front(), SIGKILL);
    ASSERT_TRUE(ends_within(helpers.front(), 20));
    std::ofstream(ready + std::to_string(round)) << "x";
  }
  const auto outcome = job.finish(60);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("was killed by signal 9 (Killed). Started another one."));
}

TEST(Launch, EndsAlthoughItsHelperProcessIsStopped) {
  for (const bool by_signal : {false, true}) {
    const cli::Scratch folder;
    const std::string ready = folder / "ready";
    const auto script = shell("echo pid $$ launcher $PPID; while [ ! -e " + ready + " ]; do sleep 0.05; done");
    cli::Process job(launch_of({"-n", "2"}, script));
    cli::Outcome seen;
    ASSERT_TRUE(
        job.wait_until([&](const auto& so_far) { return seen = so_far, count_of(so_far.out, "launcher") == 2; }));
    const int launcher = std::stoi(seen.out.substr(seen.out.find("launcher ") + 9));
    const std::vector<int> helpers = helpers_of(launcher);
    ASSERT_EQ(helpers.size(), 1u);
    kill(helpers.front(), SIGSTOP);
    by_signal ? job.signal(SIGTERM) : static_cast<void>(std::ofstream(ready) << "x");
    EXPECT_EQ(job.finish(60).exit_code, by_signal ? 143 : 0);
    EXPECT_TRUE(ends_within(helpers.front(), 20));
  }
}

TEST(Launch, AReplacedHelperProcessEndsTheRanks) {
  // The rank's child is in the rank's process group, but not the launcher's child: only the helper ends it.
  cli::Process job(launch_of({"-n", "1"}, shell("sleep 1000 & echo inner $!; echo launcher $PPID; wait")));
  cli::Outcome seen;
  ASSERT_TRUE(job.wait_until([&](const auto& so_far) { return seen = so_far, count_of(so_far.out, "launcher") == 1; }));
  const int launcher = number_of_rank(seen.out, 0, "launcher");
  for (const int helper : helpers_of(launcher)) kill(helper, SIGKILL);
  ASSERT_TRUE(job.wait_until([&](const auto& so_far) { return count_of(so_far.err, "Started another one") == 1; }));
  job.signal(SIGKILL);
  EXPECT_EQ(job.finish(20).exit_code, -SIGKILL);
  EXPECT_TRUE(ends_within(number_of_rank(seen.out, 0, "inner"), 20));
}

TEST(Launch, SeveralNodesNeedATokenAndAPlace) {
  const auto no_place = launched({"-n", "1", "--nnodes", "2"}, {"true"});
  EXPECT_EQ(no_place.exit_code, 2);
  EXPECT_THAT(no_place.err, HasSubstr("need an address at which they can meet. Set --rdzv to HOST:PORT"));
  const auto no_token = launched({"-n", "1", "--nnodes", "2", "--rdzv", "127.0.0.1:0"}, {"true"});
  EXPECT_EQ(no_token.exit_code, 1);
  EXPECT_THAT(no_token.err, HasSubstr("BELLOWS_TOKEN is not set"));
}

TEST(Launch, SaysWhatIsWrong) {
  const auto missing = launched({"-n", "2"}, {"./no-such-program"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("cannot start \"./no-such-program\": No such file or directory (2)"));
  EXPECT_EQ(launched({"-n", "0"}, {"true"}).exit_code, 2);
  EXPECT_EQ(launched({}, {"true"}).exit_code, 2);
  EXPECT_EQ(launched({"-n", "2"}, {}).exit_code, 2);
  EXPECT_EQ(launched({"-n", "2", "--min-ranks", "3"}, {"true"}).exit_code, 2);
  EXPECT_EQ(launched({"-n", "2", "--min-nodes", "2"}, {"true"}).exit_code, 2);
  const auto bad = launched({"-n", "2", "--rdzv", "here"}, {"true"});
  EXPECT_THAT(bad.err, HasSubstr("expected --rdzv HOST:PORT, got \"here\""));
  const Store taken = Store::serve("127.0.0.1", 0);
  const auto in_use = launched({"-n", "2", "--rdzv", "127.0.0.1:" + std::to_string(taken.port())}, {"true"});
  EXPECT_EQ(in_use.exit_code, 1);
  EXPECT_THAT(in_use.err, HasSubstr("is in use"));
  const auto options = launched({"-n", "1"}, shell("echo \"$@\""));
  EXPECT_EQ(options.exit_code, 0);
  EXPECT_THAT(launched({"-n", "1"}, {"echo", "--epochs", "3", "-n", "4"}).out, HasSubstr("[rank 0] --epochs 3 -n 4\n"));
}

}  // namespace bellows::comm::testing
