#pragma once

#include "bellows/core/mutex.h"
#include "bellows/data/source.h"

#include <atomic>
#include <deque>
#include <thread>
#include <vector>

namespace bellows::data {

/// Calls Source::prefetch for samples before workers read them. Two dedicated threads make these calls, so waiting for
/// a disk or a network does not delay decoding.
///
/// If a call returns quickly because the data is already in memory, fewer samples are prefetched, down to one in 32.
/// After one slow call, all samples are prefetched again.
/// Threads: use it from one thread only
class ReadAhead {
 public:
  explicit ReadAhead(SourcePtr source);
  /// Waits for running calls to finish.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Returns true if prefetching has an effect for `source`.
  static bool helps(const Source& source);

  /// Adds positions to the queue.
  void add(const std::vector<int64_t>& positions);
  /// Removes all positions from the queue.
  void clear();
  /// Returns the time that both threads together spent in Source::prefetch.
  double seconds() const { return 1e-9 * static_cast<double>(spent_ns_.load(std::memory_order_relaxed)); }

 private:
  void work();

  const SourcePtr source_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<int64_t> positions_ BELLOWS_GUARDED_BY(mutex_);
  int64_t stride_ BELLOWS_GUARDED_BY(mutex_) = 1;
  int64_t turn_ BELLOWS_GUARDED_BY(mutex_) = 0;
  bool stopping_ BELLOWS_GUARDED_BY(mutex_) = false;
  std::atomic<int64_t> spent_ns_{0};
  std::vector<std::thread> threads_;
};

}  // namespace bellows::data
