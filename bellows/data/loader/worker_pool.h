#pragma once

#include "bellows/core/mutex.h"
#include "bellows/data/loader/batch_job.h"

#include <deque>
#include <memory>
#include <thread>
#include <vector>

namespace bellows::data {

/// The queue of batches that are being made, and the threads that make them.
///
/// A worker selects the first batch with unclaimed slices and fills one slice after another. It holds the lock only to
/// find the next batch, and never while it fills a slice. A BatchJob is reused when no worker uses it anymore.
/// Threads: only the consumer's thread may use the pool
class WorkerPool {
 public:
  explicit WorkerPool(JobContext& context) : context_(context) {}
  /// Waits for running reads to finish.
  ~WorkerPool();

  /// Sets the number of active workers. All other workers sleep. If the system cannot create enough threads, the pool
  /// works with fewer threads and logs a warning.
  void resize(int64_t threads);
  int64_t threads() const { return threads_; }

  /// Appends a batch to the queue. If there is not enough memory, `plan` is unchanged.
  void push(BatchPlan&& plan, int64_t slices);
  /// Waits for the first batch in the queue, helps to make it, and returns it. Returns null if the queue is empty. The
  /// caller must pass the job to release().
  BatchJob* take(Workspace& helper);
  /// Makes a batch immediately, outside the queue. The caller must pass the job to release(). If there is not enough
  /// memory, `plan` is unchanged.
  BatchJob& make(BatchPlan&& plan, Workspace& helper);
  void release(BatchJob& job);
  /// Discards all batches in the queue.
  void abandon();
  /// Returns the number of batches in the queue.
  int64_t size() const;
  /// Returns the number of complete batches in the queue.
  int64_t ready() const;
  /// Returns true if take() would return a batch without waiting.
  bool front_ready() const;

  void add_to(StageSums& sums) const;
  /// Starts recording the work of the workers in a trace. If `writer` is null, ends the recording; work that has
  /// already begun may still be recorded.
  void trace(std::shared_ptr<TraceWriter> writer);

 private:
  struct Worker {
    int64_t index = 0;
    Workspace workspace;
    std::thread thread;
  };

  void work(Worker& worker);
  BatchJob* claimable() BELLOWS_REQUIRES(mutex_);
  bool fill_slices(BatchJob& job, Workspace& workspace, const Worker* worker) BELLOWS_EXCLUDES(mutex_);
  void mark_ready(BatchJob& job) BELLOWS_REQUIRES(mutex_);
  void retire(BatchJob& job) BELLOWS_REQUIRES(mutex_);
  void leave(BatchJob& job) BELLOWS_REQUIRES(mutex_);
  BatchJob& idle_job() BELLOWS_EXCLUDES(mutex_);
  BatchJob& begin(BatchPlan&& plan, int64_t slices);

  JobContext& context_;
  std::vector<std::unique_ptr<BatchJob>> jobs_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<int64_t> threads_{0};
  bool warned_ = false;

  mutable Mutex mutex_;
  ConditionVariable work_, ready_changed_, awake_;
  std::deque<BatchJob*> queue_ BELLOWS_GUARDED_BY(mutex_);
  std::vector<BatchJob*> idle_ BELLOWS_GUARDED_BY(mutex_);
  size_t open_ BELLOWS_GUARDED_BY(mutex_) = 0;  // all jobs before this index in the queue have no unclaimed slices
  int64_t ready_ BELLOWS_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<TraceWriter> trace_ BELLOWS_GUARDED_BY(mutex_);
  std::atomic<bool> stopping_{false};
};

}  // namespace bellows::data
