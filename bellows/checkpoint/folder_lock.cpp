#include "bellows/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>

#include "bellows/core/error.h"
#include "bellows/core/log.h"

namespace bellows::checkpoint {

namespace {

std::string this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return c10::str("pid ", ::getpid(), " on ", host.data());
}

/// Returns the text of this_process() in the process that holds the lock; "" if it has not been written yet.
std::string holder_of(int fd) {
  std::array<char, 512> text{};
  const ssize_t count = ::pread(fd, text.data(), text.size() - 1, 0);
  return {text.data(), count > 0 ? static_cast<size_t>(count) : 0};
}

/// Returns the part of a text of this_process() that names the machine.
std::string host_of(const std::string& process) {
  const size_t at = process.find(" on ");
  return at == std::string::npos ? "" : process.substr(at);
}

/// Whether the holder was a process of this machine that does not exist any more.
bool has_ended(const std::string& holder) {
  int pid = 0;
  if (std::sscanf(holder.c_str(), "pid %d", &pid) != 1 || pid <= 0 || host_of(holder) != host_of(this_process()))
    return false;
  return ::kill(pid, 0) != 0 && errno == ESRCH;
}

/// Locks the file. A child of a killed process shares the lock until it calls exec, so this function waits for such
/// children for up to two seconds.
bool lock(int fd) {
  for (int attempt = 0; attempt < 200; ++attempt) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK) return false;
    if (!has_ended(holder_of(fd))) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  errno = EWOULDBLOCK;
  return false;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder)
    // The lock file is truncated, so following a link would destroy the file behind it. Opening a pipe would block.
    : fd_(::open((folder + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666)) {
  TORCH_CHECK(fd_ >= 0 || errno != ELOOP, "checkpoint: cannot lock ", folder,
              "/.lock: expected a regular file, found a symbolic link. Remove it.");
  TORCH_CHECK(fd_ >= 0, "checkpoint: cannot write ", folder, "/.lock: ", errno_message(errno),
              ". Choose another folder.");
  if (!lock(fd_)) {
    if (errno == EWOULDBLOCK) {
      const std::string holder = holder_of(fd_);
      ::close(fd_);  // the destructor does not run
      TORCH_CHECK(false, "checkpoint: another run", holder.empty() ? "" : " (" + holder + ")", " uses ", folder,
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
