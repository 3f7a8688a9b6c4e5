#pragma once

#include <c10/util/StringUtil.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "bellows/comm/world.h"
#include "tests/comm/launched.h"

namespace bellows::parallel::testing {

struct ProcessOptions {
  int timeout_s = 240;  ///< limit for each process
  int killed = -1;      ///< rank that SIGKILL ends; -1: none
  /// Rank 0 serves the store. A stopped process could hold the lock of a store in a file.
  bool rank_0_serves = false;
  comm::InitOptions init;
};

/// Runs the current test again in some processes, which form a world, and there calls `body`. Each process has its own
/// random generators, unlike the threads of run_ranks().
/// Params: body – receives the world, and a folder that the processes share
inline void run_processes(int count, const std::function<void(const comm::World&, const std::string&)>& body,
                          const ProcessOptions& options = {}) {
  if (std::getenv("RANK")) {
    const comm::World world = comm::init(options.init);
    ASSERT_EQ(world.size(), count);
    return body(world, std::getenv("BELLOWS_TEST_FOLDER"));
  }
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  std::string folder = (std::filesystem::temp_directory_path() / "bellows-ranks-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string store = options.rank_0_serves
                                ? c10::str("MASTER_ADDR=127.0.0.1 MASTER_PORT=", comm::testing::free_port())
                                : c10::str("BELLOWS_STORE=file://", folder, "/store");
  std::vector<std::future<comm::testing::Alone>> ranks;
  for (int rank = 0; rank < count; ++rank) {
    const std::string command = c10::str("env -u BELLOWS_TOKEN -u GTEST_OUTPUT OMP_NUM_THREADS=1 WORLD_SIZE=", count,
                                         " LOCAL_WORLD_SIZE=", count, " RANK=", rank, " LOCAL_RANK=", rank, " ", store,
                                         " BELLOWS_TEST_FOLDER=", folder, " timeout -k 1 ", options.timeout_s, " ",
                                         self, " --gtest_filter=", test.test_suite_name(), ".", test.name(), " 2>&1");
    ranks.push_back(std::async(std::launch::async, comm::testing::run_shell, command));
  }
  for (int rank = 0; rank < count; ++rank) {
    const comm::testing::Alone outcome = ranks[static_cast<size_t>(rank)].get();
    if (rank == options.killed) {  // depends on whether the shell replaced itself by the command
      EXPECT_THAT(outcome.exit_code, ::testing::AnyOf(-SIGKILL, 128 + SIGKILL)) << outcome.text;
    } else {
      EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace bellows::parallel::testing
