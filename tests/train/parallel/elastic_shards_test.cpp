// Lost ranks of jobs whose state is sharded within replicas: a few random losses, 40 with script/test --slow. The weights
// at the end are compared with those of one process. Every step uses all samples of its batch exactly once; otherwise, the
// weights would be others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "bellows/train/run/rank_changes.h"
#include "tests/cli/process.h"
#include "tests/support/errors.h"
#include "tests/support/slow_tests.h"
#include "tests/train/parallel/elastic_results.h"

namespace bellows::train {
namespace {

using ::testing::HasSubstr;

/// A job of elastic_rank.
class ElasticRun {
 public:
  ElasticRun(int ranks, int64_t epochs, const std::vector<std::string>& settings, int restarts = 1000)
      : ranks_(ranks), epochs_(epochs), process_(elastic_launch(ranks, restarts, scratch_.path(), epochs, settings)) {}

  /// The processes that have trained and that still run.
  std::vector<RankStatus> trained() const { return trained_ranks(scratch_.path()); }
  /// Whether all replicas train together.
  bool is_complete() const { return is_complete(trained()); }
  /// All processes of the job.
  std::vector<pid_t> processes() const { return launched_processes(process_.pid(), "elastic_rank"); }
  int64_t last_step() const {
    int64_t last = 0;
    for (const RankStatus& status : trained()) last = std::max(last, status.step);
    return last;
  }
  void kill(const std::vector<pid_t>& pids) const { train::kill_ranks(pids, scratch_.path()); }
  /// Kills ranks of the world of all replicas at the same time. The others cannot form another world in between, in
  /// which the ranks have other numbers.
  void kill_ranks(const std::set<int>& ranks) const {
    std::vector<pid_t> pids;
    for (const RankStatus& status : trained()) {
      if (status.ranks == ranks_ && ranks.contains(status.rank)) pids.push_back(status.pid);
    }
    EXPECT_EQ(pids.size(), ranks.size()) << "a rank is missing or counted twice";
    kill(pids);
  }
  void kill_rank(int rank) const { kill_ranks({rank}); }
  void write(const std::string& file) const { std::ofstream(scratch_ / file) << "1"; }
  void remove(const std::string& file) const { std::filesystem::remove(scratch_ / file); }
  bool exists(const std::string& file) const { return std::filesystem::exists(scratch_ / file); }

  /// Waits until the condition is true.
  void wait_for(const std::function<bool()>& condition, const char* what, double seconds = 100) {
    const bool reached = process_.wait_until([&](const cli::Outcome&) { return condition(); }, seconds);
    ASSERT_TRUE(reached) << what << "\n" << process_.finish(0.1).err;
  }
  void wait_until_complete() {
    wait_for([this] { return is_complete(); }, "the replicas did not become complete");
  }
  /// Kills one process in this phase of its work, and waits until it was replaced.
  void lose_in(const std::string& phase) {
    const std::set<pid_t> before = pids_of(trained());
    write("die-" + phase);
    wait_for([&] { return !exists("die-" + phase); }, "no process reached the phase");
    const auto replaced = [&] {
      const std::vector<RankStatus> now = trained();
      return is_complete(now) && pids_of(now) != before;
    };
    wait_for(replaced, "no process was lost and replaced");
  }

  /// Stops one process in this phase of its work for a second. The others must wait for it.
  void stop_in(const std::string& phase) {
    write("stop-" + phase);
    pid_t stopped = 0;
    const auto is_stopped = [&] {
      for (const pid_t pid : processes()) {
        std::ifstream file(c10::str("/proc/", pid, "/stat"));
        const std::string state((std::istreambuf_iterator<char>(file)), {});
        if (state.find(") T ") != std::string::npos) stopped = pid;
      }
      return stopped > 0;
    };
    wait_for(is_stopped, "no process stopped in the phase");
    if (stopped == 0) return;
    const int64_t step = last_step();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    EXPECT_LE(last_step(), step + 2) << "the other ranks train without the one that is stopped";
    ::kill(stopped, SIGCONT);
    wait_for([&] { return last_step() > step + 2; }, "the ranks did not continue");
  }

  /// Waits for the end. Returns what the launcher wrote.
  cli::Outcome finish(double seconds = 300) {
    write("go");
    process_.wait_until([](const cli::Outcome&) { return false; }, seconds);
    return process_.finish();
  }
  /// Returns what the launcher wrote.
  std::string expect_same_result() {
    const cli::Outcome outcome = finish();
    expect_trained_like_one_process(outcome, scratch_, epochs_);
    return outcome.err;
  }
  std::vector<int64_t> logged() const { return logged_steps(scratch_ / "run/log.csv"); }

 private:
  bool is_complete(const std::vector<RankStatus>& all) const {
    std::set<int> ranks;
    for (const RankStatus& status : all) {
      if (status.ranks == ranks_) ranks.insert(status.rank);
    }
    return static_cast<int>(all.size()) == ranks_ && static_cast<int>(ranks.size()) == ranks_;
  }
  static std::set<pid_t> pids_of(const std::vector<RankStatus>& all) {
    std::set<pid_t> pids;
    for (const RankStatus& status : all) pids.insert(status.pid);
    return pids;
  }

  const int ranks_;
  const int64_t epochs_;
  const cli::Scratch scratch_;
  cli::Process process_;
};

std::vector<std::string> two_by_two(const std::string& strategy) {
  std::vector<std::string> settings = {"data_parallel=" + strategy, "mesh={data: 2, shard: 2}"};
  if (strategy != "zero1") settings.emplace_back("shard_units=0,3");
  return settings;
}

/// Set BELLOWS_KILL_SEED to have other moments.
uint32_t kill_seed() {
  const char* given = std::getenv("BELLOWS_KILL_SEED");
  return given ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10)) : 11;
}

/// Kills ranks at random moments, but always leaves a complete replica.
class ReplicaKiller {
 public:
  ReplicaKiller(ElasticRun& run, int losses) : run_(run), losses_(losses) {}

  /// Call it repeatedly.
  void look() {
    const auto now = std::chrono::steady_clock::now();
    if (done() || now < next_) return;
    next_ = now + std::chrono::milliseconds(std::uniform_int_distribution(20, 600)(random_));
    if (run_.is_complete()) {
      const int rank = pick(4);
      const bool both = pick(3) == 0;
      for (const RankStatus& status : run_.trained()) {
        if (status.rank == rank || (both && status.rank / 2 == rank / 2)) kill(status.pid);
      }
    } else if (pick(3) == 0) {
      kill_other();
    }
  }
  bool done() const { return killed_ >= losses_; }

 private:
  int pick(int count) { return std::uniform_int_distribution(0, count - 1)(random_); }
  void kill(pid_t pid) {
    run_.kill({pid});
    ++killed_;
  }
  /// Kills a process that does not train: it is new, or it waits for one that is new.
  void kill_other() {
    std::set<pid_t> training;
    for (const RankStatus& status : run_.trained()) {
      if (status.ranks == 2) training.insert(status.pid);
    }
    if (training.size() != 2) return;
    std::vector<pid_t> others;
    for (const pid_t pid : run_.processes()) {
      if (!training.contains(pid)) others.push_back(pid);
    }
    if (!others.empty()) kill(others[static_cast<size_t>(pick(static_cast<int>(others.size())))]);
  }

  ElasticRun& run_;
  const int losses_;
  int killed_ = 0;
  std::mt19937 random_{kill_seed()};
  std::chrono::steady_clock::time_point next_;
};

void expect_losses_change_no_result(const std::string& strategy, int short_losses = 2) {
  const int losses = slow_tests() ? 40 : short_losses;
  ElasticRun run(4, 70 + 10 * losses, two_by_two(strategy));
  ReplicaKiller killer(run, losses);
  const auto lost = [&] {
    killer.look();
    return killer.done();
  };
  run.wait_for(lost, "the run was too short", 1200);
  run.expect_same_result();
  expect_ascending(run.logged());
}

TEST(ElasticShards, WithoutLosses) {
  ElasticRun run(4, 10, two_by_two("zero2"));
  run.expect_same_result();
}

TEST(ElasticShards, LostReplicasOfZero3ChangeNoResult) {
  expect_losses_change_no_result("zero3", 5);
}

TEST(ElasticShards, LostReplicasOfZero2ChangeNoResult) {
  expect_losses_change_no_result("zero2");
}

TEST(ElasticShards, LostReplicasOfZero1ChangeNoResult) {
  expect_losses_change_no_result("zero1");
}

// During a gather, during the exchange of gradients, while a checkpoint is written, and a new process while it joins.
TEST(ElasticShards, RanksMayBeLostInAnyPhase) {
  ElasticRun run(4, 150, two_by_two("zero3"));
  run.wait_until_complete();
  for (const char* phase : {"forward", "backward", "checkpoint"}) run.lose_in(phase);
  run.write("die-join-new");
  run.kill_rank(1);
  run.wait_for([&] { return !run.exists("die-join-new"); }, "no new process joined");
  run.wait_until_complete();
  run.expect_same_result();
}

// While the other ranks gather parameters, exchange gradients, and save.
TEST(ElasticShards, StoppedRanksContinueWithTheSameResult) {
  ElasticRun run(4, 120, two_by_two("zero3"));
  run.wait_until_complete();
  for (const char* phase : {"forward", "backward", "checkpoint"}) {
    SCOPED_TRACE(phase);
    run.stop_in(phase);
  }
  EXPECT_THAT(run.expect_same_result(), ::testing::Not(HasSubstr("a new process takes its place")));
}

// The process that should send its part to a new one is lost. A third replica has the same part.
TEST(ElasticShards, ASenderMayBeLost) {
  ElasticRun run(6, 120, {"data_parallel=zero2", "mesh={data: 3, shard: 2}", "ema_decay=0.9"});
  run.wait_until_complete();
  run.write("hold");
  run.kill_rank(5);
  run.wait_for([&] { return run.exists("held"); }, "no new process");
  run.write("die-join-old");
  run.remove("hold");
  run.wait_for([&] { return !run.exists("die-join-old"); }, "no process joined");
  run.wait_until_complete();
  run.expect_same_result();
}

TEST(ElasticShards, BothRanksOfAReplicaMayBeLost) {
  ElasticRun run(4, 80, two_by_two("zero2"));
  run.wait_until_complete();
  run.kill_ranks({0, 1});
  run.wait_until_complete();
  const std::string log = run.expect_same_result();
  EXPECT_THAT(log, ::testing::Not(HasSubstr("Restarting all")));
}

TEST(ElasticShards, WithoutACompleteReplicaAllRanksRestart) {
  ElasticRun run(4, 60, two_by_two("zero3"));
  run.wait_for([&] { return run.last_step() > 110; }, "no checkpoint");
  run.kill_ranks({1, 2});
  const std::string log = run.expect_same_result();
  EXPECT_THAT(log, HasSubstr("Restarting all 4 ranks"));
}

TEST(ElasticShards, WithoutReplacementsTheJobFails) {
  ElasticRun run(4, 1000, two_by_two("zero1"), /*restarts=*/1);
  run.wait_until_complete();
  run.kill_rank(1);
  run.wait_until_complete();
  run.kill_rank(3);
  EXPECT_EQ(run.finish().exit_code, 137);
}

// The others train while a new process opens its data.
TEST(ElasticShards, NewProcessesDoNotDelayTheOthers) {
  ElasticRun run(4, 80, two_by_two("zero3"));
  run.wait_until_complete();
  run.write("hold");
  run.kill_rank(3);
  run.wait_for([&] { return run.exists("held"); }, "no new process");
  const int64_t step = run.last_step();
  run.wait_for([&] { return run.last_step() >= step + 20; }, "the other ranks wait");
  EXPECT_FALSE(run.is_complete());
  run.remove("hold");
  run.wait_until_complete();
  run.expect_same_result();
}

TEST(ElasticShards, StateWithoutASecondCopyIsRefused) {
  Recipe recipe;
  recipe.device = "cpu";
  int ranks = 4;
  const auto refused = [&] { return message_of([&] { check_replaceable_ranks(recipe, ranks); }); };
  recipe.data_parallel = "zero2";
  EXPECT_THAT(refused(), HasSubstr("needs a second copy of each shard of the state"));
  recipe.mesh = "{data: 1, shard: 4}";
  EXPECT_THAT(refused(), HasSubstr("needs a second copy of each shard of the state"));
  recipe.mesh = "{data: 2, shard: 2}";
  EXPECT_EQ(refused(), "no error");
  for (const int other : {2, 5}) {
    ranks = other;
    EXPECT_THAT(refused(), HasSubstr(c10::str("needs 4 ranks, got ", other)));
  }
  ranks = 4;
  recipe.shard_state_over_all = true;
  EXPECT_THAT(refused(), HasSubstr("shard_state_over_all must be false"));
  recipe.shard_state_over_all = false;
  recipe.optimizer_in_backward = true;
  EXPECT_THAT(refused(), HasSubstr("optimizer_in_backward must be false"));
  recipe = Recipe();
  recipe.mesh = "{data: 2, context: 2}";
  EXPECT_THAT(refused(), HasSubstr("mesh must not have an axis context"));
}

}  // namespace
}  // namespace bellows::train
