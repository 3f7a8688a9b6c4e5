#pragma once

#include <memory>

namespace bellows::tap {

/// An OpTap client that answers operators before it executes them. The returned tensors get their values later.
class Deferral {
 public:
  virtual ~Deferral() = default;
  /// Runs all pending operators. Meanwhile this client and the taps above it are removed from the thread.
  virtual void sync() = 0;
  /// Turns deferring off until the matching call with true. The calls come in pairs, which can nest.
  virtual void set_deferring(bool on) = 0;
};

/// Returns: the innermost client on this thread that defers operators, or null
std::shared_ptr<Deferral> active_deferral();

/// Runs all operators that are pending on this thread. Afterwards every tensor has its value. Call it before you access
/// data by pointer or the state of a random generator, because such accesses call no operator.
/// Cost:   if nothing is pending, one look at the thread's list of taps
/// Throws: exceptions of the pending operators
void sync();

/// While the guard lives, operators run when they are called instead of being deferred. The constructor runs all
/// pending operators. Use it in host code that mixes operators and pointers, such as printing a tensor.
/// Threads: create and destroy the guard on the same thread. It affects all threads of the client.
class EagerGuard {
 public:
  /// Throws: as sync()
  EagerGuard();
  ~EagerGuard();
  EagerGuard(const EagerGuard&) = delete;
  EagerGuard& operator=(const EagerGuard&) = delete;

 private:
  std::shared_ptr<Deferral> client_;
};

}  // namespace bellows::tap
