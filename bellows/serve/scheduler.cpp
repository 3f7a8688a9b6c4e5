#include "bellows/serve/scheduler.h"

#include <utility>

#include "bellows/system/thread.h"

namespace bellows::serve {

namespace {

/// Cancelled requests free their place in the queue after this time at the latest.
constexpr auto drop_interval = std::chrono::milliseconds(50);

}  // namespace

Scheduler::Scheduler(std::vector<RunModel> instances, QueueOptions options, std::shared_ptr<ModelStatistics> statistics)
    : batched_(options.max_batch_size > 0),
      padding_(options.padding),
      statistics_(std::move(statistics)),
      queue_(std::move(options)) {
  const MutexLock lock(join_mutex_);
  try {
    for (RunModel& run : instances)
      threads_.push_back(start_thread("model instance", [this, call = std::move(run)] { serve_instance(call); }));
    dropper_ = start_thread("model queue", [this] { drop_requests(); });
  } catch (...) {
    {
      const MutexLock queue_lock(mutex_);
      draining_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    throw;
  }
}

Scheduler::~Scheduler() {
  drain();
}

Scheduler::Submitted Scheduler::submit(PendingRequest& request) {
  {
    const MutexLock lock(mutex_);
    if (draining_) return Submitted::draining;
    const bool was_empty = queue_.size() == 0;
    if (!queue_.push(request, Clock::now())) return Submitted::full;
    statistics_->set_pending(queue_.size());
    if (was_empty) drop_changed_.notify_one();
  }
  changed_.notify_one();
  return Submitted::queued;
}

void Scheduler::drain() {
  {
    const MutexLock lock(mutex_);
    draining_ = true;
  }
  changed_.notify_all();
  const MutexLock lock(join_mutex_);
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  {
    const MutexLock queue_lock(mutex_);
    instances_ended_ = true;
  }
  drop_changed_.notify_all();
  if (dropper_.joinable()) dropper_.join();
}

void Scheduler::serve_instance(const RunModel& run) {
  UniqueLock lock(mutex_);
  while (true) {
    const auto now = Clock::now();
    std::vector<PendingRequest> dropped = queue_.take_dropped(now);
    std::vector<PendingRequest> batch = queue_.take_batch(now, draining_);
    if (!dropped.empty() || !batch.empty()) {
      statistics_->set_pending(queue_.size());
      // submit() wakes one instance for each request, but this batch may have left requests for another one.
      const bool more = queue_.size() > 0;
      lock.unlock();
      if (more) changed_.notify_one();
      answer_dropped(std::move(dropped));
      if (!batch.empty()) execute_batch(run, batch, batched_, *statistics_, padding_.get());
      batch.clear();
      lock.lock();
      continue;
    }
    if (draining_ && queue_.size() == 0) return;
    const auto until = queue_.wait_until();
    if (until == Clock::time_point::max())
      changed_.wait(lock);
    else
      changed_.wait_for(lock, until - now);
  }
}

void Scheduler::drop_requests() {
  UniqueLock lock(mutex_);
  while (!instances_ended_) {
    if (queue_.size() == 0) {
      drop_changed_.wait(lock);
      continue;
    }
    const auto now = Clock::now();
    std::vector<PendingRequest> dropped = queue_.take_dropped(now);
    if (!dropped.empty()) {
      statistics_->set_pending(queue_.size());
      lock.unlock();
      answer_dropped(std::move(dropped));
      lock.lock();
      continue;
    }
    const auto deadline = std::min(queue_.next_deadline(), now + drop_interval);
    drop_changed_.wait_for(lock, deadline - now);
  }
}

void Scheduler::answer_dropped(std::vector<PendingRequest> dropped) {
  for (PendingRequest& request : dropped) {
    request.times.done = Clock::now();
    const bool cancelled = request.is_cancelled();
    statistics_->add_failure(cancelled ? FailureReason::cancelled : FailureReason::rejected,
                             request.times.done - request.times.received);
    InferenceResult result{.times = request.times};
    if (cancelled)
      result.error.emplace(status_cancelled, "the request was cancelled because the client disconnected.");
    else
      result.error.emplace(status_unavailable, "the request timed out while it waited for the model.", 1);
    request.done(std::move(result));
  }
}

}  // namespace bellows::serve
