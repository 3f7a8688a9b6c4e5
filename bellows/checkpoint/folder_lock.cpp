#include "bellows/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "bellows/core/error.h"
#include "bellows/core/log.h"

namespace bellows::checkpoint {

namespace {

std::string this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return c10::str("pid ", ::getpid(), " on ", host.data());
}

/// Returns "" if the holder has not written it yet.
std::string holder_of(int fd) {
  std::array<char, 512> text{};
  const ssize_t count = ::pread(fd, text.data(), text.size() - 1, 0);
  return count > 0 ? " (" + std::string(text.data(), static_cast<size_t>(count)) + ")" : "";
}

}  // namespace

FolderLock::FolderLock(const std::string& folder)
    // The lock file is truncated, so following a link would destroy the file behind it. Opening a pipe would block.
    : fd_(::open((folder + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666)) {
  TORCH_CHECK(fd_ >= 0 || errno != ELOOP, "checkpoint: cannot lock ", folder,
              "/.lock: expected a regular file, found a symbolic link. Remove it.");
  TORCH_CHECK(fd_ >= 0, "checkpoint: cannot write ", folder, "/.lock: ", errno_message(errno),
              ". Choose another folder.");
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      const std::string holder = holder_of(fd_);
      ::close(fd_);  // the destructor does not run
      TORCH_CHECK(false, "checkpoint: another run", holder, " uses ", folder,
                  ". Wait until it ends, stop it, or choose another folder.");
    }
    log_warn("checkpoint: ", folder, " cannot be locked: ", errno_message(errno),
             ". Do not start two runs in it at the same time, because they would destroy each other's checkpoints.");
  }
  const std::string text = this_process();
  if (::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, text.data(), text.size(), 0) < 0) {
    log_debug("checkpoint: cannot write the process ID to ", folder, "/.lock: ", errno_message(errno));
  }
}

FolderLock::~FolderLock() {
  ::close(fd_);
}

}  // namespace bellows::checkpoint
