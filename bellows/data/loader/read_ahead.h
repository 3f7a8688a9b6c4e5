#pragma once

#include "bellows/data/source.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace bellows::data {

/// Calls Source::prefetch for samples before workers read them, from two dedicated threads, so that waiting for a disk
/// or a network does not delay decoding.
///
/// If prefetching takes no noticeable time because the data is already there, only one sample in up to 32 is
/// prefetched. After one slow call, all samples are prefetched again.
/// Threads: one owner
class ReadAhead {
 public:
  explicit ReadAhead(SourcePtr source);
  /// Waits for the calls in progress.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// True if prefetching has an effect for `source`.
  static bool helps(const Source& source);

  void add(const std::vector<int64_t>& positions);
  /// Discards all positions that were added.
  void clear();
  /// Time that both threads spent in Source::prefetch.
  double seconds() const { return 1e-9 * static_cast<double>(spent_ns_.load(std::memory_order_relaxed)); }

 private:
  void work();

  const SourcePtr source_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int64_t> positions_;
  int64_t stride_ = 1, turn_ = 0;
  bool stopping_ = false;
  std::atomic<int64_t> spent_ns_{0};
  std::vector<std::thread> threads_;
};

}  // namespace bellows::data
