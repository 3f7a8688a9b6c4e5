#pragma once

#include <memory>

namespace bellows::inspect {

/// While it lives, a random operator that runs before a seed is set throws c10::ValueError with the operator's name and
/// call site.
///
/// A seed is set if bellows::seed_everything() was called, or if the seed of the default CPU generator is not
/// libtorch's initial one (torch::manual_seed). The guard ignores operators that get their own generator, and those
/// that draw nothing with their arguments: dropout in evaluation or with probability 0, attention without dropout.
/// Threads: observes the thread that creates it, and autograd's workers for that thread; create and destroy it on the
///          same thread
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
