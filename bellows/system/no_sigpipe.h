#pragma once

#include <signal.h>

#include <ctime>

namespace bellows {

/// Blocks SIGPIPE on this thread while the object exists. Meanwhile, writing to a connection that the peer has closed
/// does not end the program. Threads that start during this time inherit the blocked signal and keep it blocked. The
/// program's signal handlers are not changed.
/// Threads: create and destroy the object on the same thread; destroy nested objects in reverse order
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec now{};
    while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_{}, before_{};
  bool was_pending_ = false;
};

}  // namespace bellows
