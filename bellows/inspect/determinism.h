#pragma once

#include <functional>

#include "bellows/core/stats.h"

namespace bellows::inspect {

struct DeterminismOptions {
  /// If an operator has no deterministic kernel, warn instead of throwing.
  bool warn_only = false;
  /// Fill the result of at::empty with NaN or the largest integer. This costs one pass over the memory.
  bool fill_uninitialized_memory = true;
};

/// While this guard exists, the same input and seed give bit-identical results. Only deterministic kernels run,
/// including those of cuDNN, and cuDNN's autotuner is off. The settings apply to the whole process. The destructor
/// restores the previous settings. On CUDA, cuBLAS also needs the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8.
/// Set it before cuBLAS is used for the first time. If the variable is not set, a warning is logged once.
/// Cost:    depends on the model; measure_determinism_cost() measures it
/// Threads: other threads must not change these settings while the guard exists
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
  /// Number of pairs of timed windows. Each pair consists of one window without deterministic mode and one window with
  /// it.
  int pairs = 5;
  int steps_per_window = 5;
};

/// Returns the time of `step` in deterministic mode divided by its time without this mode. A ratio of 1.03 means that
/// deterministic mode is 3 % slower.
/// Params: step – one training step. It runs 2·pairs·steps_per_window times, after one warm-up step in each mode
/// Throws: c10::ValueError if there are fewer than 2 pairs or no steps. Exceptions of `step` are passed on, for example
///         if an operator has no deterministic kernel
RatioInterval measure_determinism_cost(const std::function<void()>& step, const DeterminismCostOptions& options = {});

}  // namespace bellows::inspect
