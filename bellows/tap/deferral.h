#pragma once

#include <memory>

namespace bellows::tap {

/// An OpTap client that returns results before it executes the operators. The returned tensors receive their values
/// later.
class Deferral {
 public:
  virtual ~Deferral() = default;
  /// Runs all pending operators. While they run, this client and the taps above it are removed from the thread.
  virtual void sync() = 0;
  /// Turns deferral off (false) or on again (true). Each call with false needs a later call with true. Such pairs of
  /// calls can be nested.
  virtual void set_deferring(bool on) = 0;
};

/// Returns the innermost client on this thread that defers operators, or null if there is none.
std::shared_ptr<Deferral> active_deferral();

/// Runs all operators that are pending on this thread. Afterwards, every tensor has its value. Call this function
/// before you access data through a pointer or access the state of a random generator. Such accesses do not call an
/// operator, so they do not run pending operators automatically.
/// Cost:   if nothing is pending, one lookup in the thread's list of taps
/// Throws: exceptions of the pending operators
void sync();

/// Disables deferral while the guard exists: operators run when they are called. The constructor runs all pending
/// operators. Use this guard in host code that mixes operators and pointers, for example to print a tensor.
/// Threads: create and destroy the guard on the same thread. It affects all threads that use the same client
class EagerGuard {
 public:
  /// Throws: exceptions of the pending operators
  EagerGuard();
  ~EagerGuard();
  EagerGuard(const EagerGuard&) = delete;
  EagerGuard& operator=(const EagerGuard&) = delete;

 private:
  std::shared_ptr<Deferral> client_;
};

}  // namespace bellows::tap
