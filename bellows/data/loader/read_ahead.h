#pragma once

#include "bellows/data/source.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace bellows::data {

/// Announces samples to their source before workers read them (Source::prefetch), from two threads of its own, so that
/// waiting for a disk or a network does not hold up decoding.
///
/// While an announcement costs nothing that is noticed, because the data is there already, only one sample in up to 32
/// is announced; one that took long brings all of them back.
/// Threads: one owner
class ReadAhead {
 public:
  explicit ReadAhead(SourcePtr source);
  /// Waits for the calls in progress.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Whether `source` wants to be told.
  static bool helps(const Source& source);

  void add(const std::vector<int64_t>& positions);
  /// Forgets what was added.
  void clear();
  /// Spent in Source::prefetch, by both threads.
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
