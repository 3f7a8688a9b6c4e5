#pragma once

#include <memory>

namespace bellows::inspect {

/// While it lives, a random operator that runs before anybody has seeded is an error: c10::ValueError from the
/// operator's call, with its name and place.
///
/// Seeded means: bellows::seed_everything() was called, or the default CPU generator's seed is not libtorch's initial
/// one (torch::manual_seed). Never an error: operators given a generator of their own, and those that draw nothing
/// with their arguments (dropout in evaluation or with probability 0, attention without dropout).
/// Threads: sees the thread that makes it and autograd's workers for it; make and destroy it on one thread
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
