#include "two_ranks.h"

#include "bellows/system/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

namespace bellows::testing {
namespace {

std::string current_test() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return std::string(info->test_suite_name()) + "." + info->name();
}

std::string rank_log(const std::string& folder, int rank) {
  return folder + "/rank" + std::to_string(rank) + ".log";
}

/// Everything is prepared before fork(): the child only duplicates a file and executes.
pid_t start_rank(const std::string& folder, int rank, int world) {
  const std::string filter = "--gtest_filter=" + current_test(), log = rank_log(folder, rank);
  const std::string place = std::to_string(rank) + " " + std::to_string(world) + " " + folder;
  setenv("BELLOWS_TEST_RANK", place.c_str(), 1);
  setenv("GTEST_OUTPUT", "", 1);
  const int out = open(log.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(out, 1);
    dup2(out, 2);
    execl("/proc/self/exe", "dist_test", filter.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  close(out);
  unsetenv("BELLOWS_TEST_RANK");
  return pid;
}

/// The exit status, or nothing when the time was up.
std::optional<int> wait_until(pid_t pid, std::chrono::steady_clock::time_point deadline) {
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return status;
}

}  // namespace

const RankPlace* rank_place() {
  static const std::optional<RankPlace> place = []() -> std::optional<RankPlace> {
    const char* text = getenv("BELLOWS_TEST_RANK");
    if (!text) return std::nullopt;
    RankPlace result;
    int used = 0;
    if (sscanf(text, "%d %d %n", &result.rank, &result.world, &used) != 2) return std::nullopt;
    result.folder = text + used;
    return result;
  }();
  return place ? &*place : nullptr;
}

std::string run_ranks(int world, int limit_s) {
  std::string folder = (std::filesystem::temp_directory_path() / "bellows_ranks_XXXXXX").string();
  if (!mkdtemp(folder.data())) return "cannot create " + folder;
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < world; ++rank) ranks.push_back(start_rank(folder, rank, world));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(limit_s);
  std::string problems;
  for (int rank = 0; rank < world; ++rank) {
    const auto status = wait_until(ranks[rank], deadline);
    if (status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0) continue;
    problems += "rank " + std::to_string(rank) +
                (status ? " failed, status " + std::to_string(*status) : " was killed after the limit") + ":\n" +
                read_text_file(rank_log(folder, rank)) + "\n";
  }
  std::filesystem::remove_all(folder);
  return problems;
}

}  // namespace bellows::testing
