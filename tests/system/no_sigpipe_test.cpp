#include "bellows/system/no_sigpipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

namespace bellows {
namespace {

/// Writes to a pipe that nobody reads; the error number.
int write_to_nobody() {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  close(ends[0]);
  const int error = write(ends[1], "x", 1) == 1 ? 0 : errno;
  close(ends[1]);
  return error;
}

TEST(NoSigpipe, ProtectsItsThreadWhileItLivesAndThoseStartedMeanwhileForGood) {
  std::optional<NoSigpipe> guard(std::in_place);
  EXPECT_EQ(write_to_nobody(), EPIPE);
  std::thread late([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(write_to_nobody(), EPIPE);
  });
  guard.reset();  // what was raised meanwhile is gone
  late.join();
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGPIPE), 0);
}

}  // namespace
}  // namespace bellows
