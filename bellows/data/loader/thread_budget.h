#pragma once

#include <cstdint>

namespace bellows::data {

/// Number of processors that this process may use at a time. It is determined once.
int64_t usable_cores();

/// Measurements since the last decision about the number of threads.
struct BudgetWindow {
  double seconds = 0;
  double wait_s = 0;         ///< time that next() waited for the loader
  double busy_s = 0;         ///< working time of all workers together
  double blocked_share = 0;  ///< part of it that was spent waiting, but not for a core
  double process_cpu_s = 0;  ///< of the whole process, including the model
  int64_t samples = 0;       ///< delivered
};

/// Chooses the number of a loader's workers, window by window. It starts with few. It adds workers while next() waits,
/// as long as cores are free (or the workers mostly wait) and the throughput rises. It removes workers after four
/// windows in which one fewer would have been enough. An increase without effect is undone and not tried again for a
/// pause that doubles each time.
/// Threads: one owner
class ThreadBudget {
 public:
  /// Params: cores – number of cores that may work at a time
  explicit ThreadBudget(int64_t cores);

  int64_t threads() const { return threads_; }
  /// The maximum: four per core, which is used if workers wait more than they compute.
  int64_t most() const;
  /// Returns: the new threads()
  int64_t update(const BudgetWindow& window);

 private:
  void grow(const BudgetWindow& window, double rate);
  void judge_growth(double rate, bool waits);

  const int64_t cores_;
  int64_t threads_;
  int64_t before_ = 0;                  // threads before the increase on trial; 0: no trial
  double rate_before_ = 0;              // samples/s before the trial
  int64_t pause_ = 0, next_pause_ = 8;  // windows without growth
  int64_t calm_ = 0;                    // windows in which one thread fewer would have been enough
};

}  // namespace bellows::data
