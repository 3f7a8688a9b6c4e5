#include "bellows/runtime/async_queue.h"

#include <utility>

#include "bellows/system/thread.h"

namespace bellows::runtime {

AsyncQueue::~AsyncQueue() {
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    ended_ = true;
    thread = std::move(thread_);
  }
  changed_.notify_all();
  if (thread.joinable()) thread.join();
}

std::future<AsyncQueue::Result> AsyncQueue::add(std::function<Result()> call) {
  std::packaged_task<Result()> task(std::move(call));
  std::future<Result> result = task.get_future();
  {
    const MutexLock lock(mutex_);
    if (!thread_.joinable()) thread_ = start_thread("run_async", [this] { work(); });
    calls_.push_back(std::move(task));
  }
  changed_.notify_one();
  return result;
}

void AsyncQueue::work() {
  UniqueLock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this]() BELLOWS_REQUIRES(mutex_) { return ended_ || !calls_.empty(); });
    if (calls_.empty()) return;
    std::packaged_task<Result()> task = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    task();
    task = {};  // frees the inputs before the next call is awaited
    lock.lock();
  }
}

}  // namespace bellows::runtime
