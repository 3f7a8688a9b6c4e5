#pragma once

#include <cstdint>

namespace bellows::data {

/// Processors that this process may use at a time; looked up once.
int64_t usable_cores();

/// What happened since the last decision about the number of threads.
struct BudgetWindow {
  double seconds = 0;
  double wait_s = 0;         ///< next() waited for the loader
  double busy_s = 0;         ///< the workers worked, all together
  double blocked_share = 0;  ///< of it, waiting, and not for a core
  double process_cpu_s = 0;  ///< of the whole process, the model's included
  int64_t samples = 0;       ///< delivered
};

/// Chooses how many workers a loader has, window by window: few at first; more while next() waits, as long as cores are
/// free (or the workers only wait themselves) and the samples come faster by it; fewer after four windows in which
/// one less would have been enough. A step up that brought nothing is taken back and not tried again for a while that
/// doubles each time.
/// Threads: one owner
class ThreadBudget {
 public:
  /// Params: cores – that may work at a time
  explicit ThreadBudget(int64_t cores);

  int64_t threads() const { return threads_; }
  /// The most there can ever be: four a core, where workers wait more than they compute.
  int64_t most() const;
  /// Returns: threads() from now on
  int64_t update(const BudgetWindow& window);

 private:
  void grow(const BudgetWindow& window, double rate);
  void judge_growth(double rate, bool waits);

  const int64_t cores_;
  int64_t threads_;
  int64_t before_ = 0;                  // threads before the step that is on trial; 0: none is
  double rate_before_ = 0;              // samples a second then
  int64_t pause_ = 0, next_pause_ = 8;  // windows without growth
  int64_t calm_ = 0;                    // windows in which one thread less would have been enough
};

}  // namespace bellows::data
