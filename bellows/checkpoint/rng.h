#pragma once

#include "bellows/core/model.h"

namespace bellows::checkpoint {

/// Returns the states of libtorch's default generators: "cpu", and "cuda:0", "cuda:1", … for all accelerators.
NamedTensors rng_state();

/// Restores the states of generators. States of generators that this machine does not have are skipped with a warning.
/// Throws: c10::ValueError if a state has the wrong size or dtype
void set_rng_state(const NamedTensors& state);

/// Restores the states of libtorch's default generators at the end of a scope, even after an exception. Random operators
/// in the scope then do not change the numbers that are drawn after it. If restoring fails, a warning is logged.
/// Cost:    one copy of each state: about 5 KB for the CPU
/// Threads: generators are shared by all threads, so other threads that draw numbers in the scope repeat them afterwards
class RngGuard {
 public:
  RngGuard() : state_(rng_state()) {}
  ~RngGuard();
  RngGuard(const RngGuard&) = delete;
  RngGuard& operator=(const RngGuard&) = delete;

 private:
  const NamedTensors state_;
};

}  // namespace bellows::checkpoint
