#pragma once

#include <functional>

#include "bellows/core/stats.h"

namespace bellows::inspect {

struct DeterminismOptions {
  bool warn_only = false;                 ///< operators without a deterministic kernel warn instead of throwing
  bool fill_uninitialized_memory = true;  ///< fills at::empty with NaN or the largest integer; costs one pass over it
};

/// While it lives, the same input and seed give bit-identical results: only deterministic kernels run, also in cuDNN,
/// whose autotuner is off. The settings apply to the whole process; the guard restores the previous ones. On CUDA,
/// cuBLAS also needs the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8 before its first use. If it is not set, a
/// warning is logged once.
/// Cost:    measure it with measure_determinism_cost()
/// Threads: other threads must not change these settings meanwhile
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
  int pairs = 5;  ///< number of pairs of timed windows, alternately without and with the mode
  int steps_per_window = 5;
};

/// The time of `step` in deterministic mode divided by its time without it: 1.03 means 3 % slower.
/// Params: step – one training step; it runs 2·pairs·steps_per_window times, after one warm-up in each mode
/// Throws: c10::ValueError if there are fewer than 2 pairs or no steps; exceptions of `step`, for example for an
///         operator without a deterministic kernel
RatioInterval measure_determinism_cost(const std::function<void()>& step, const DeterminismCostOptions& options = {});

}  // namespace bellows::inspect
