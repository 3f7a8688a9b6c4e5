#pragma once

#include <cstdint>

namespace bellows::data {

/// Returns the number of cores that this process can use at the same time. The number is determined once.
int64_t usable_cores();

/// Measurements since the last decision about the number of threads.
struct BudgetWindow {
  double seconds = 0;
  double wait_s = 0;         ///< time that next() waited for a batch
  double busy_s = 0;         ///< time that all workers together spent on samples
  double blocked_share = 0;  ///< share of busy_s that was spent waiting, but not for a core
  double process_cpu_s = 0;  ///< CPU time of the whole process, including the model
  int64_t samples = 0;       ///< number of samples that next() returned
};

/// Chooses the number of a loader's worker threads at the end of each measurement window. It starts with one to four
/// threads, depending on the number of cores.
///
/// If next() waits, threads are added while the throughput rises and cores are free. If the workers mostly wait,
/// threads are added even if no core is free. One thread is removed after four consecutive windows in which one thread
/// fewer would have been enough. An increase that does not raise the throughput is undone. After that, no threads are
/// added for some windows. This pause doubles after each increase that is undone.
/// Threads: use it from one thread only
class ThreadBudget {
 public:
  /// Params: cores – number of cores that the process can use at the same time
  explicit ThreadBudget(int64_t cores);

  int64_t threads() const { return threads_; }
  /// Returns the maximum number of threads, which is four per core. It is reached only if workers wait more than they
  /// compute.
  int64_t most() const;
  /// Decides on the number of threads. Call this once per window.
  /// Returns: the new value of threads()
  int64_t update(const BudgetWindow& window);

 private:
  void grow(const BudgetWindow& window, double rate);
  void judge_growth(double rate, bool waits);

  const int64_t cores_;
  int64_t threads_;
  int64_t before_ = 0;                  // number of threads before the increase that is being tested; 0: no test
  double rate_before_ = 0;              // samples/s before the increase
  int64_t pause_ = 0, next_pause_ = 8;  // number of windows until threads may be added
  int64_t calm_ = 0;                    // number of windows in which one thread fewer would have been enough
};

}  // namespace bellows::data
