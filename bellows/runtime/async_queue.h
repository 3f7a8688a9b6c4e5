#pragma once

#include <deque>
#include <functional>
#include <future>
#include <stop_token>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "bellows/core/mutex.h"

namespace bellows::runtime {

/// Runs calls of a model one after another on one thread, which starts with the first call. A thread that exists for all
/// calls keeps its OpenMP threads.
/// Threads: thread-safe
class AsyncQueue {
 public:
  using Result = std::vector<at::Tensor>;

  AsyncQueue() = default;
  /// Runs all calls that were added, and ends the thread.
  ~AsyncQueue();
  AsyncQueue(const AsyncQueue&) = delete;
  AsyncQueue& operator=(const AsyncQueue&) = delete;

  /// Throws: c10::Error if the system cannot start a thread
  std::future<Result> add(std::function<Result()> call);

 private:
  void work();

  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<std::packaged_task<Result()>> calls_ BELLOWS_GUARDED_BY(mutex_);
  bool ended_ BELLOWS_GUARDED_BY(mutex_) = false;
  std::thread thread_ BELLOWS_GUARDED_BY(mutex_);
};

}  // namespace bellows::runtime
