#include "bellows/data/loader/read_ahead.h"

#include <algorithm>
#include <system_error>

#include "bellows/data/loader/stage_clock.h"

namespace bellows::data {

namespace {

constexpr int kReadAheadThreads = 2;
constexpr int64_t kNoticedNs = 20'000;  // a prefetch that takes this long had to load the data
constexpr int64_t kLongestStride = 32;
constexpr size_t kWorthWaking = 8;  // number of prefetches, if they were free so far

}  // namespace

ReadAhead::ReadAhead(SourcePtr source) : source_(std::move(source)) {
  try {
    for (int i = 0; i < kReadAheadThreads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // if the system has no more threads, fewer or none are used
  }
}

ReadAhead::~ReadAhead() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool ReadAhead::helps(const Source& source) {
  try {
    return source.prefetch(0);
  } catch (...) {  // it tried to prefetch
    return true;
  }
}

void ReadAhead::add(const std::vector<int64_t>& positions) {
  if (threads_.empty()) return;  // without threads, nothing would empty the queue
  bool worth_it = false;
  {
    MutexLock lock(mutex_);
    for (int64_t position : positions) {
      if (++turn_ < stride_) continue;
      turn_ = 0;
      positions_.push_back(position);
    }
    worth_it = stride_ == 1 || positions_.size() >= kWorthWaking;
  }
  if (worth_it) changed_.notify_all();
}

void ReadAhead::clear() {
  MutexLock lock(mutex_);
  positions_.clear();
}

void ReadAhead::work() {
  UniqueLock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&]() BELLOWS_REQUIRES(mutex_) { return stopping_ || !positions_.empty(); });
    if (stopping_) return;
    const int64_t position = positions_.front();
    positions_.pop_front();
    lock.unlock();
    const int64_t begin = now_ns();
    try {
      source_->prefetch(position);
    } catch (...) {  // read() reports the error
    }
    const int64_t took = now_ns() - begin;
    spent_ns_.fetch_add(took, std::memory_order_relaxed);
    lock.lock();
    stride_ = took >= kNoticedNs ? 1 : std::min(stride_ * 2, kLongestStride);
  }
}

}  // namespace bellows::data
