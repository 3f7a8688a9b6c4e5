#pragma once

#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/system/thread.h"

namespace bellows::data {

/// The state that in_order() shares with the threads that it starts.
template <class Slot, class Make>
class OrderedWork {
 public:
  OrderedWork(int64_t begin, int64_t end, int64_t threads, const Make& make)
      : make_(make), end_(end), claimed_(begin), consumed_(begin), cells_(static_cast<size_t>(4 * threads)) {
    try {
      for (int64_t i = 0; i < threads; ++i) workers_.push_back(start_thread("convert", [this] { work(); }));
    } catch (...) {
      finish();
      throw;
    }
  }
  ~OrderedWork() { finish(); }
  OrderedWork(const OrderedWork&) = delete;
  OrderedWork& operator=(const OrderedWork&) = delete;

  /// Waits until the next slot in order is ready. Throws the exception that `make` threw for this slot.
  Slot& next() {
    UniqueLock lock(mutex_);
    Cell& cell = cell_of(consumed_);
    made_.wait(lock, [&] { return cell.ready; });
    if (cell.error) std::rethrow_exception(cell.error);
    return cell.slot;
  }
  /// Allows the threads to reuse the slot that next() returned.
  void give_back() {
    MutexLock lock(mutex_);
    cell_of(consumed_++).ready = false;
    used_.notify_one();
  }

 private:
  struct Cell {
    Slot slot;
    std::exception_ptr error;
    bool ready = false;
  };
  Cell& cell_of(int64_t index) { return cells_[static_cast<size_t>(index) % cells_.size()]; }

  void work() {
    UniqueLock lock(mutex_);
    for (;;) {
      const auto room = static_cast<int64_t>(cells_.size());
      used_.wait(lock,
                 [&]() BELLOWS_REQUIRES(mutex_) { return stop_ || claimed_ >= end_ || claimed_ < consumed_ + room; });
      if (stop_ || claimed_ >= end_) return;
      const int64_t index = claimed_++;
      Cell& cell = cell_of(index);
      lock.unlock();
      try {
        make_(index, cell.slot);
      } catch (...) {
        cell.error = std::current_exception();
      }
      lock.lock();
      cell.ready = true;
      if (index == consumed_) made_.notify_one();
    }
  }
  void finish() {
    {
      MutexLock lock(mutex_);
      stop_ = true;
    }
    used_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  const Make& make_;
  const int64_t end_;
  Mutex mutex_;
  ConditionVariable made_, used_;
  int64_t claimed_ BELLOWS_GUARDED_BY(mutex_);
  int64_t consumed_ BELLOWS_GUARDED_BY(mutex_);
  bool stop_ BELLOWS_GUARDED_BY(mutex_) = false;
  std::vector<Cell> cells_;  // not guarded: a cell belongs to the thread that claimed it, then to the consumer
  std::vector<std::thread> workers_;
};

/// Creates items in several threads. The calling thread uses the items in order.
/// Params: make – make(index, slot) is called for each index in [begin, end), in any order and on any thread
///         use – use(index, slot) is called in order; if it returns false, the loop ends early
/// Cost:   4 slots per thread, which are reused
/// Throws: the first exception of `make` in the order of the indices, or the exception of `use`
template <class Slot, class Make, class Use>
void in_order(int64_t begin, int64_t end, int64_t threads, const Make& make, const Use& use) {
  OrderedWork<Slot, Make> work(begin, end, threads, make);
  for (int64_t index = begin; index < end; ++index) {
    if (!use(index, work.next())) return;
    work.give_back();
  }
}

}  // namespace bellows::data
