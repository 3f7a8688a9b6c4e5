#pragma once

#include <memory>

namespace bellows::inspect {

/// While this guard exists, a random operator throws c10::ValueError if no seed has been set. The message contains the
/// operator's name and call site.
///
/// A seed has been set if bellows::seed_everything() was called. A seed also counts as set if the seed of the default
/// CPU generator differs from the random seed with which libtorch started, for example after torch::manual_seed(). The
/// guard ignores operators that get their own generator. It also ignores operators that draw no random numbers with the
/// given arguments: dropout in evaluation mode or with probability 0, and attention without dropout.
/// Threads: observes the thread that creates the guard, and autograd's workers for that thread. Create and destroy the
///          guard on the same thread
class RandomGuard {
 public:
  RandomGuard();
  ~RandomGuard();
  RandomGuard(const RandomGuard&) = delete;
  RandomGuard& operator=(const RandomGuard&) = delete;

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

}  // namespace bellows::inspect
