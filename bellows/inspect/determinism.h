#pragma once

#include <functional>

#include "bellows/core/stats.h"

namespace bellows::inspect {

struct DeterminismOptions {
  bool warn_only = false;                 ///< an operator without a deterministic kernel warns instead of throwing
  bool fill_uninitialized_memory = true;  ///< at::empty is filled with NaN or the largest integer; costs a pass over it
};

/// The same input and seed give the same bits while it lives: deterministic kernels only, cuDNN included, its
/// autotuner off. The settings are the whole process's; the guard puts back what was there. On CUDA, cuBLAS also
/// needs the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8 before the first use: where it is missing, the log
/// says so once.
/// Cost:    measure_determinism_cost()
/// Threads: no other thread should change these settings meanwhile
/// Ref:     torch.use_deterministic_algorithms
class DeterministicGuard {
 public:
  explicit DeterministicGuard(const DeterminismOptions& options = {});
  ~DeterministicGuard();
  DeterministicGuard(const DeterministicGuard&) = delete;
  DeterministicGuard& operator=(const DeterministicGuard&) = delete;

 private:
  struct Saved {
    bool algorithms, warn_only, cudnn, benchmark_cudnn, fill;
  };
  Saved saved_;
};

struct DeterminismCostOptions {
  DeterminismOptions mode{};
  int pairs = 5;  ///< windows with the mode off and on, in turn
  int steps_per_window = 5;
};

/// The time of `step` in deterministic mode divided by its time without: 1.03 means 3 % slower.
/// Params: step – one training step; it is run 2·pairs·steps_per_window times, after one warm-up in each mode
/// Throws: c10::ValueError – fewer than 2 pairs, no steps; what `step` throws, e.g. an operator without a
///         deterministic kernel
RatioInterval measure_determinism_cost(const std::function<void()>& step, const DeterminismCostOptions& options = {});

}  // namespace bellows::inspect
