#include "bellows/data/loader/worker_pool.h"

#include <system_error>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"

namespace bellows::data {

namespace {

constexpr uint64_t kFirstWorkerRow = 1000;  // in the trace, below the threads that have their own rows

}  // namespace

WorkerPool::~WorkerPool() {
  abandon();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  awake_.notify_all();
  for (const auto& worker : workers_) worker->thread.join();
}

void WorkerPool::resize(int64_t threads) {
  if (threads == threads_) return;
  while (static_cast<int64_t>(workers_.size()) < threads) {
    auto worker = std::make_unique<Worker>();
    worker->index = static_cast<int64_t>(workers_.size());
    try {
      worker->thread = std::thread([this, mine = worker.get()] { work(*mine); });
    } catch (const std::system_error& error) {
      if (!std::exchange(warned_, true))
        log_warn("Loader: the system cannot create more threads (", errno_message(error.code().value()),
                 "); continuing with ", workers_.size(), " of ", threads, ".");
      threads = static_cast<int64_t>(workers_.size());
      break;
    }
    workers_.push_back(std::move(worker));
  }
  {
    MutexLock lock(mutex_);
    threads_ = threads;
  }
  work_.notify_all();
  awake_.notify_all();
}

void WorkerPool::work(Worker& worker) {
  UniqueLock lock(mutex_);
  for (;;) {
    awake_.wait(lock, [&] { return stopping_ || worker.index < threads_; });
    BatchJob* job = nullptr;
    work_.wait(lock,
               [&]() BELLOWS_REQUIRES(mutex_) { return stopping_ || worker.index >= threads_ || (job = claimable()); });
    if (stopping_) return;
    if (!job) continue;
    ++job->users;
    if (worker.workspace.clock.trace() != trace_.get())
      worker.workspace.clock.trace_into(trace_, kFirstWorkerRow + static_cast<uint64_t>(worker.index));
    lock.unlock();
    const bool completed = fill_slices(*job, worker.workspace, &worker);
    lock.lock();
    if (completed) mark_ready(*job);
    leave(*job);
  }
}

BatchJob* WorkerPool::claimable() {
  while (open_ < queue_.size() && !queue_[open_]->claimable()) ++open_;
  return open_ < queue_.size() ? queue_[open_] : nullptr;
}

/// Params: worker – may be put to sleep; null: the consumer, which checks after each slice whether all slices are done
bool WorkerPool::fill_slices(BatchJob& job, Workspace& workspace, const Worker* worker) {
  for (;;) {
    const int64_t slice = job.claim();
    if (slice < 0) return false;
    TraceWriter* const trace = workspace.clock.trace();
    const double begin_us = trace ? trace_now_us() : 0;
    const bool completed = job.fill(slice, workspace);
    if (trace) {
      trace->add({c10::str("batch ", job.place().index), "data", begin_us, trace_now_us() - begin_us,
                  workspace.clock.trace_row(), ""});
    }
    if (completed || !worker || worker->index >= threads_ || stopping_) return completed;
  }
}

void WorkerPool::mark_ready(BatchJob& job) {
  if (job.state != BatchJob::State::queued) return;  // abandoned
  job.state = BatchJob::State::ready;
  job.completed_ns = now_ns();
  ++ready_;
  ready_changed_.notify_one();
}

void WorkerPool::leave(BatchJob& job) {
  --job.users;
  if (job.state == BatchJob::State::retired) retire(job);
}

void WorkerPool::retire(BatchJob& job) {
  job.state = BatchJob::State::retired;
  if (job.users > 0) return;
  job.clear();
  job.state = BatchJob::State::idle;
  idle_.push_back(&job);
}

BatchJob& WorkerPool::idle_job() {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      BatchJob* const job = idle_.back();
      idle_.pop_back();
      return *job;
    }
  }
  return *jobs_.emplace_back(std::make_unique<BatchJob>(context_));
}

BatchJob& WorkerPool::begin(BatchPlan&& plan, int64_t slices) {
  BatchJob& job = idle_job();
  try {
    job.begin(std::move(plan), slices);
  } catch (...) {  // no memory
    release(job);
    throw;
  }
  return job;
}

BatchJob& WorkerPool::make(BatchPlan&& plan, Workspace& helper) {
  BatchJob& job = begin(std::move(plan), 1);
  job.fill(job.claim(), helper);
  job.completed_ns = now_ns();
  return job;
}

void WorkerPool::push(BatchPlan&& plan, int64_t slices) {
  BatchJob& job = begin(std::move(plan), slices);
  {
    MutexLock lock(mutex_);
    job.state = BatchJob::State::queued;
    queue_.push_back(&job);
  }
  work_.notify_all();
}

BatchJob* WorkerPool::take(Workspace& helper) {
  UniqueLock lock(mutex_);
  if (queue_.empty()) return nullptr;
  if (helper.clock.trace() != trace_.get()) helper.clock.trace_into(trace_, 0);
  BatchJob* const front = queue_.front();
  while (front->state != BatchJob::State::ready) {
    if (!front->claimable()) {
      ready_changed_.wait(lock);
      continue;
    }
    lock.unlock();
    const bool completed = fill_slices(*front, helper, nullptr);
    lock.lock();
    if (completed) mark_ready(*front);
  }
  queue_.pop_front();
  if (open_ > 0) --open_;
  --ready_;
  return front;
}

void WorkerPool::release(BatchJob& job) {
  MutexLock lock(mutex_);
  retire(job);
}

void WorkerPool::abandon() {
  MutexLock lock(mutex_);
  for (BatchJob* job : queue_) {
    job->cancel();
    retire(*job);
  }
  queue_.clear();
  open_ = 0;
  ready_ = 0;
}

int64_t WorkerPool::size() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(queue_.size());
}

int64_t WorkerPool::ready() const {
  MutexLock lock(mutex_);
  return ready_;
}

bool WorkerPool::front_ready() const {
  MutexLock lock(mutex_);
  return !queue_.empty() && queue_.front()->state == BatchJob::State::ready;
}

void WorkerPool::add_to(StageSums& sums) const {
  for (const auto& worker : workers_) worker->workspace.clock.add_to(sums);
}

void WorkerPool::trace(std::shared_ptr<TraceWriter> writer) {
  if (writer) {
    for (size_t i = 0; i < workers_.size(); ++i)
      writer->name_thread(kFirstWorkerRow + i, c10::str("loader worker ", i + 1));
  }
  MutexLock lock(mutex_);
  trace_ = std::move(writer);
}

}  // namespace bellows::data
