#pragma once

#include <memory>

namespace bellows::tap {

/// An OpTap client that answers operators before it has run them, with tensors whose values come later.
class Deferral {
 public:
  virtual ~Deferral() = default;
  /// Runs what is pending. The taps that it stands below, and itself, are off this thread meanwhile.
  virtual void sync() = 0;
  /// Until it is called with true again: nothing is deferred. Called in pairs, which may nest.
  virtual void set_deferring(bool on) = 0;
};

/// The innermost client of this thread's OpTaps that defers, or null.
std::shared_ptr<Deferral> active_deferral();

/// Runs the operators that a client on this thread has answered but not run: afterwards every tensor has its value. For code
/// that is about to reach data by pointer, or the state of a random generator, where no operator tells. Nothing to do costs
/// a look at the thread's list of taps.
/// Throws: what the operators throw
void sync();

/// While it lives, the operators that the client would defer run when they are called; what was pending has run. For host code
/// that mixes operators and pointers, as printing a tensor does.
/// Threads: make and destroy it on one thread; it counts for all threads of the client
class UndeferredGuard {
 public:
  /// Throws: as sync()
  UndeferredGuard();
  ~UndeferredGuard();
  UndeferredGuard(const UndeferredGuard&) = delete;
  UndeferredGuard& operator=(const UndeferredGuard&) = delete;

 private:
  std::shared_ptr<Deferral> client_;
};

}  // namespace bellows::tap
