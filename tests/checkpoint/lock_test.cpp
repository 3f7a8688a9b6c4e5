#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "bellows/checkpoint/folder.h"
#include "tests/checkpoint/support.h"

namespace bellows::checkpoint {

namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A process that opens a Folder, writes a byte to `ready` and waits for its end.
pid_t hold(const std::string& path, int ready) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    const Folder folder(path);
    if (write(ready, "x", 1) == 1) pause();
  } catch (...) {
  }
  _exit(3);
}

}  // namespace

TEST(Lock, TwoRunsInOneFolderAreRefusedUntilOneIsKilled) {
  const TemporaryFolder temporary;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = hold(temporary.path(), ends[1]);
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  write_bytes(temporary / "step-000000000001.pt.tmp-aB3xYz", "the other run is writing this");
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  EXPECT_THAT(
      error_of([&] { Folder(temporary.path()); }),
      AllOf(HasSubstr(c10::str("another run (pid ", child, " on ", host.data(), ")")), HasSubstr(temporary.path())));
  EXPECT_TRUE(std::filesystem::exists(temporary / "step-000000000001.pt.tmp-aB3xYz"));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const Folder folder(temporary.path());
  EXPECT_FALSE(std::filesystem::exists(temporary / "step-000000000001.pt.tmp-aB3xYz"));
  EXPECT_EQ(read_bytes(temporary / ".lock"), c10::str("pid ", getpid(), " on ", host.data()));
  close(ends[0]);
  close(ends[1]);
}

// A child of a killed run has the lock until it calls exec or ends.
TEST(Lock, WaitsForChildrenOfAKilledRun) {
  const TemporaryFolder temporary;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const Folder folder(temporary.path());
    if (fork() == 0) {
      if (write(ends[1], "x", 1) == 1) usleep(100'000);
      _exit(0);
    }
    pause();
    _exit(3);
  }
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(error_of([&] { Folder(temporary.path()); }), "");
  close(ends[0]);
  close(ends[1]);
}

TEST(Lock, AlsoWithinOneProcess) {
  const TemporaryFolder temporary;
  {
    const Folder folder(temporary.path());
    EXPECT_THAT(error_of([&] { Folder(temporary.path()); }), HasSubstr(c10::str("pid ", getpid())));
  }
  EXPECT_EQ(error_of([&] { Folder(temporary.path()); }), "");
}

}  // namespace bellows::checkpoint
