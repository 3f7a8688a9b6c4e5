#include "bellows/system/pipe.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "bellows/core/error.h"

namespace bellows {
namespace {

bool is_open(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}

TEST(Pipe, ClosesWhatWasNotTaken) {
  int kept = -1, closed = -1;
  {
    Pipe pipe("test");
    char letter = 0;
    EXPECT_EQ(write(pipe.write_end(), "x", 1), 1);
    EXPECT_EQ(read(pipe.read_end(), &letter, 1), 1);
    EXPECT_EQ(letter, 'x');
    EXPECT_EQ(fcntl(pipe.read_end(), F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(fcntl(pipe.write_end(), F_GETFD), FD_CLOEXEC);
    closed = pipe.read_end();
    kept = pipe.take_write_end();
    EXPECT_EQ(pipe.write_end(), -1);
  }
  EXPECT_FALSE(is_open(closed));
  EXPECT_TRUE(is_open(kept));
  close(kept);
}

TEST(Pipe, SaysWhoGotNone) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  none.rlim_cur = 0;
  setrlimit(RLIMIT_NOFILE, &none);
  std::string message;
  try {
    const Pipe pipe("launch");
  } catch (const c10::Error& error) {
    message = user_message(error);
  }
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_THAT(message, testing::StartsWith("launch: cannot create a pipe: Too many open files (24; this process may "
                                           "open 0 files: raise the limit with `ulimit -n`)."));
}

}  // namespace
}  // namespace bellows
