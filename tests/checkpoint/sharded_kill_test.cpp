#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "bellows/checkpoint/folder.h"
#include "bellows/core/seed.h"
#include "tests/checkpoint/support.h"
#include "tests/support/slow_tests.h"

namespace bellows::checkpoint {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

int64_t kills() {
  return slow_tests() ? 100 : 3;
}

/// The processes of one job.
class Job {
 public:
  Job(int ranks, const std::string& folder, bool background, const std::string& store) {
    pids_.reserve(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<std::string> command = {"/usr/bin/env",
                                                "RANK=" + std::to_string(rank),
                                                "WORLD_SIZE=" + std::to_string(ranks),
                                                "LOCAL_RANK=" + std::to_string(rank),
                                                "LOCAL_WORLD_SIZE=" + std::to_string(ranks),
                                                "BELLOWS_STORE=file://" + store,
                                                "BELLOWS_TOKEN=t",
                                                "OMP_NUM_THREADS=1",
                                                BELLOWS_BIN_DIR "/checkpoint_rank",
                                                folder,
                                                background ? "background" : "foreground"};
      std::vector<char*> arguments;
      arguments.reserve(command.size() + 1);
      for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
      arguments.push_back(nullptr);
      pids_.push_back(fork());
      if (pids_.back() == 0) {
        execv(arguments[0], arguments.data());
        _exit(127);
      }
    }
  }
  ~Job() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void kill_rank(size_t rank) const { kill(pids_[rank], SIGKILL); }
  size_t size() const { return pids_.size(); }

  /// Waits for the end of all; false when the time is up. A rank that was not killed has to end with 1.
  bool ends_within(std::chrono::seconds limit) {
    const auto end = Clock::now() + limit;
    while (!pids_.empty() && Clock::now() < end) {
      std::erase_if(pids_, [](pid_t pid) {
        int status = 0;
        if (waitpid(pid, &status, WNOHANG) != pid) return false;
        EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 1) << "status " << status;
        return true;
      });
      std::this_thread::sleep_for(5ms);
    }
    return pids_.empty();
  }

 private:
  std::vector<pid_t> pids_;
};

/// Waits until a checkpoint is there that is newer than `step`.
bool saves_beyond(const std::string& folder, const std::string& newest) {
  for (const auto end = Clock::now() + 60s; Clock::now() < end; std::this_thread::sleep_for(2ms)) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step-") && name > newest) return true;
    }
  }
  return false;
}

/// Reads the newest as one process does. Returns its name.
/// Params: count – of checkpoints, then and now: a job that is killed before the oldest went leaves one more than it found
std::string expect_whole(const std::string& path, size_t& count) {
  const CapturedLog log;
  Folder folder(path, 2);
  const auto state = folder.newest();
  EXPECT_TRUE(state);
  if (!state) return "";
  const auto value = static_cast<double>(state->step);
  EXPECT_TRUE(state->model[0].second.eq(value).all().item<bool>()) << state->step;
  EXPECT_TRUE(state->optimizer[0].second.eq(value).all().item<bool>()) << state->step;
  EXPECT_EQ(log.text(), "") << "a half-written checkpoint stood under its name";
  const std::vector<std::string> all = folder.list();
  EXPECT_LE(all.size(), std::max<size_t>(count, 2) + 1);
  count = all.size();
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(name == ".lock" || name.starts_with("step-")) << name << " was left";
  }
  return std::filesystem::path(all.back()).filename();
}

}  // namespace

// Every round starts with another number of ranks, so each resume is one onto another world, too.
TEST(ShardedKill, AnyRankAtAnyMomentLeavesTheNewestWhole) {
  const TemporaryFolder temporary, stores;
  RandomStream random(2027);
  std::string newest;
  size_t count = 0;
  for (int64_t round = 0; round < kills(); ++round) {
    SCOPED_TRACE(c10::str("round ", round));
    Job job(static_cast<int>(2 + round % 2), temporary.path(), round % 2 == 0, stores / std::to_string(round));
    ASSERT_TRUE(saves_beyond(temporary.path(), newest)) << "nothing was saved within a minute";
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(60'000)));
    const bool all = random.below(3) == 0;
    const size_t victim = random.below(job.size());
    for (size_t rank = 0; rank < job.size(); ++rank) {
      if (all || rank == victim) job.kill_rank(rank);
    }
    ASSERT_TRUE(job.ends_within(30s)) << "the others wait for a rank that is gone";
    const std::string found = expect_whole(temporary.path(), count);
    ASSERT_GT(found, newest);
    newest = found;
  }
}

}  // namespace bellows::checkpoint
