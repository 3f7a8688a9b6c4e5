#pragma once

#include "bellows/data/loader/batch_job.h"

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace bellows::data {

/// The batches being made, in order, and the threads that make them.
///
/// A worker takes the first batch that has unclaimed slices and claims one after the other; the lock is held only to
/// find the next batch, never during work. Jobs are used again when nobody holds them any more.
/// Threads: one owner, the consumer
class WorkerPool {
 public:
  explicit WorkerPool(JobContext& context) : context_(context) {}
  /// Waits for the reads in progress.
  ~WorkerPool();

  /// How many workers work; others sleep. Where the system gives no more threads, fewer do, and a warning is logged.
  void resize(int64_t threads);
  int64_t threads() const { return threads_; }

  /// Adds a batch behind the others. Where there is no memory for it, `plan` is as it was.
  void push(BatchPlan&& plan, int64_t slices);
  /// Takes the first batch, when it is complete, and helps with it. Null when there is none. Give it to release().
  BatchJob* take(Workspace& helper);
  /// Makes a batch at once, beside the queue. Give it to release(). Where there is no memory, `plan` is as it was.
  BatchJob& make(BatchPlan&& plan, Workspace& helper);
  void release(BatchJob& job);
  /// Forgets all batches.
  void abandon();
  /// Batches, and how many of them are complete.
  int64_t size() const;
  int64_t ready() const;
  /// Whether take() would return at once with a batch.
  bool front_ready() const;

  void add_to(StageSums& sums) const;
  /// Draws what the workers do; null ends that. Bars that have begun may come after.
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
