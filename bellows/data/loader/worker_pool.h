#pragma once

#include "bellows/data/loader/batch_job.h"

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace bellows::data {

/// The queue of batches in progress and the threads that make them.
///
/// A worker takes the first batch with unclaimed slices and claims one slice after another. It holds the lock only to
/// find the next batch, never while it works. Jobs are reused when no worker holds them.
/// Threads: one owner, the consumer
class WorkerPool {
 public:
  explicit WorkerPool(JobContext& context) : context_(context) {}
  /// Waits for the reads in progress.
  ~WorkerPool();

  /// Sets the number of active workers; the others sleep. If the system cannot create enough threads, fewer work and a
  /// warning is logged.
  void resize(int64_t threads);
  int64_t threads() const { return threads_; }

  /// Appends a batch to the queue. If there is no memory for it, `plan` is unchanged.
  void push(BatchPlan&& plan, int64_t slices);
  /// Waits for the first batch in the queue, helps to make it, and returns it. Null if the queue is empty. Pass the job
  /// to release().
  BatchJob* take(Workspace& helper);
  /// Makes a batch immediately, outside the queue. Pass the job to release(). If there is no memory, `plan` is
  /// unchanged.
  BatchJob& make(BatchPlan&& plan, Workspace& helper);
  void release(BatchJob& job);
  /// Discards all batches.
  void abandon();
  /// Number of batches in the queue, and number of complete ones.
  int64_t size() const;
  int64_t ready() const;
  /// True if take() would return a batch immediately.
  bool front_ready() const;

  void add_to(StageSums& sums) const;
  /// From now on, records the workers' activity in a trace. Null stops it; bars already begun may still be written.
  void trace(std::shared_ptr<TraceWriter> writer);

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Worker {
    int64_t index = 0;
    Workspace workspace;
    std::thread thread;
  };

  void work(Worker& worker);
  BatchJob* claimable();
  bool fill_slices(BatchJob& job, Workspace& workspace, const Worker* worker);
  void mark_ready(BatchJob& job);
  void retire(BatchJob& job);
  void leave(BatchJob& job);
  BatchJob& idle_job();
  BatchJob& begin(BatchPlan&& plan, int64_t slices);

  JobContext& context_;
  std::vector<std::unique_ptr<BatchJob>> jobs_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<int64_t> threads_{0};
  bool warned_ = false;

  mutable std::mutex mutex_;
  std::condition_variable work_, ready_changed_, awake_;
  std::deque<BatchJob*> queue_;
  std::vector<BatchJob*> idle_;
  size_t open_ = 0;  // jobs of the queue before it have no unclaimed slices
  int64_t ready_ = 0;
  std::shared_ptr<TraceWriter> trace_;
  std::atomic<bool> stopping_{false};
};

}  // namespace bellows::data
