#pragma once

#include <cstdint>

#include "bellows/core/mutex.h"

namespace bellows::serve {

/// Counts the requests that use an object, so that drain() can wait for them.
/// Threads: thread-safe
class RunningRequests {
 public:
  /// Returns: false if drain() was called before. The request must not use the object then
  bool add() {
    const MutexLock lock(mutex_);
    if (draining_) return false;
    ++count_;
    return true;
  }
  void remove() {
    const MutexLock lock(mutex_);
    if (--count_ == 0) ended_.notify_all();  // under the lock, because drain() may end the object's life
  }
  /// Accepts no more requests, and waits until none is left.
  void drain() {
    UniqueLock lock(mutex_);
    draining_ = true;
    ended_.wait(lock, [this]() BELLOWS_REQUIRES(mutex_) { return count_ == 0; });
  }

 private:
  Mutex mutex_;
  ConditionVariable ended_;
  int64_t count_ BELLOWS_GUARDED_BY(mutex_) = 0;
  bool draining_ BELLOWS_GUARDED_BY(mutex_) = false;
};

}  // namespace bellows::serve
