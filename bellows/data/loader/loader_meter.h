#pragma once

#include "bellows/data/loader/report.h"
#include "bellows/data/loader/thread_budget.h"

#include <vector>

namespace bellows::data {

/// Writes the measurements of the threads into a report.
void fill(LoaderReport& report, const StageSums& sums);

/// Measures the time that the consumer of a loader spends in next() and between calls of next().
/// Threads: use it from the consumer's thread only
class LoaderMeter {
 public:
  /// Call this at the end of Loader::start(). The time in start() counts as waiting.
  /// Params: began_ns – time at which start() was called
  void start(int64_t began_ns);
  /// Call this at the beginning of next().
  /// Params: ready – number of finished batches
  void enter(int64_t ready);
  /// Call this when next() has a batch.
  /// Params: taken_ns – time at which the batch was taken, which may be before the call of next()
  ///         completed_ns – time at which the batch was finished; 0: there is no batch
  void taken(int64_t taken_ns, int64_t completed_ns);
  /// Adds a period in which next() worked on samples itself.
  void add(LoadStage stage, int64_t ns, int64_t samples) { clock_.add(stage, ns, samples); }
  /// Call this at the end of next().
  /// Params: samples – number of samples in the batch; 0 after an error; negative at the end of the epoch
  void leave(int64_t samples, int64_t threads);

  /// Fills `window` with the measurements since the last window, except those of the workers. Returns false for the
  /// first window and if the window is still too short for a decision.
  bool take_window(BudgetWindow& window);

  /// Returns the share of the time since start() that next() spent waiting.
  double wait_share() const;
  /// Fills all fields except the measurements of the threads.
  void fill(LoaderReport& report) const;
  void add_to(StageSums& sums) const { clock_.add_to(sums); }

 private:
  void look_at_queue(int64_t ready);
  void look_at_processor_time();

  StageClock clock_;  // for hand-over and transfer
  int64_t origin_ns_ = 0, mark_ns_ = 0, entered_ns_ = 0, cpu_mark_ns_ = 0;
  bool open_ = false, first_ = false;  // an epoch is running; its first batch was not yet returned
  int64_t wait_ns_ = 0, first_wait_ns_ = 0, model_ns_ = 0, ready_ns_ = 0, process_cpu_ns_ = 0;
  int64_t epoch_wait_ns_ = 0, epoch_ns_ = 0, run_ns_ = 0, thread_ns_ = 0;
  int64_t cpu_wall_ns_ = 0, cpu_mark_run_ns_ = 0;  // the part of run_ns_ that process_cpu_ns_ covers
  struct Totals {
    int64_t run_ns = 0, wait_ns = 0, cpu_ns = 0, samples = 0;
  } window_;  // totals at the end of the last window
  int64_t epochs_ = 0, batches_ = 0, samples_ = 0;
  int64_t looks_ = 0, looks_between_points_ = 1;
  double ready_sum_ = 0;
  std::vector<QueuePoint> queue_;
};

}  // namespace bellows::data
