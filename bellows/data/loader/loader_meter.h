#pragma once

#include "bellows/data/loader/report.h"
#include "bellows/data/loader/thread_budget.h"

#include <vector>

namespace bellows::data {

/// Puts what the threads measured into a report.
void fill(LoaderReport& report, const StageSums& sums);

/// Measures the consumer's side of a loader: what next() waited for, and what it was called in between.
/// Threads: the consumer's
class LoaderMeter {
 public:
  /// start() was called; its own time counts as waiting.
  /// Params: began_ns – when
  void start(int64_t began_ns);
  /// next() was called. Params: ready – finished batches
  void enter(int64_t ready);
  /// Params: taken_ns – when the batch was there for next(), which may have been before the call
  ///         completed_ns – when it was finished; 0: there is none
  void taken(int64_t taken_ns, int64_t completed_ns);
  /// A stretch of next() in which the consumer works for itself.
  void add(LoadStage stage, int64_t ns, int64_t samples) { clock_.add(stage, ns, samples); }
  /// next() returns a batch of `samples`; none: the epoch's end, or an error.
  void leave(int64_t samples, int64_t threads);

  /// What happened since the last window, if that was long enough ago to decide by. What the workers did is left to
  /// others.
  bool take_window(BudgetWindow& window);

  /// Share of the time since start() in which next() waited.
  double wait_share() const;
  /// Everything but what the threads measured.
  void fill(LoaderReport& report) const;
  void add_to(StageSums& sums) const { clock_.add_to(sums); }

 private:
  void look_at_queue(int64_t ready);
  void look_at_processor_time();

  StageClock clock_;  // of hand-over and transfer
  int64_t origin_ns_ = 0, mark_ns_ = 0, entered_ns_ = 0, cpu_mark_ns_ = 0;
  bool open_ = false, first_ = false;  // an epoch runs; its first batch is still to come
  int64_t wait_ns_ = 0, first_wait_ns_ = 0, model_ns_ = 0, ready_ns_ = 0, process_cpu_ns_ = 0;
  int64_t epoch_wait_ns_ = 0, epoch_ns_ = 0, run_ns_ = 0, thread_ns_ = 0;
  int64_t cpu_wall_ns_ = 0, cpu_mark_run_ns_ = 0;  // the part of run_ns_ that process_cpu_ns_ is about
  struct Totals {
    int64_t run_ns = 0, wait_ns = 0, cpu_ns = 0, samples = 0;
  } window_;  // when the last window ended
  int64_t epochs_ = 0, batches_ = 0, samples_ = 0;
  int64_t looks_ = 0, looks_between_points_ = 1;
  double ready_sum_ = 0;
  std::vector<QueuePoint> queue_;
};

}  // namespace bellows::data
