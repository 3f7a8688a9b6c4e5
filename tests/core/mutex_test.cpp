#include "bellows/core/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

namespace bellows {

namespace {

using namespace std::chrono_literals;

/// A value that one thread sets and another one waits for.
class Mailbox {
 public:
  void put(int value) {
    {
      const MutexLock lock(mutex_);
      value_ = value;
    }
    changed_.notify_all();
  }
  int take() {
    UniqueLock lock(mutex_);
    changed_.wait(lock, [this]() BELLOWS_REQUIRES(mutex_) { return value_ != 0; });
    return std::exchange(value_, 0);
  }
  bool has_value_within(std::chrono::milliseconds time) {
    UniqueLock lock(mutex_);
    return changed_.wait_for(lock, time, [this]() BELLOWS_REQUIRES(mutex_) { return value_ != 0; });
  }

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  int value_ BELLOWS_GUARDED_BY(mutex_) = 0;
};

/// Locks and unlocks the mutex on another thread, which waits if it is held.
template <class AnyMutex>
std::thread touch(AnyMutex& mutex, std::atomic<bool>& touched) {
  return std::thread([&] {
    const MutexLock lock(mutex);
    touched = true;
  });
}

}  // namespace

TEST(Mutex, WaitReturnsAfterNotify) {
  Mailbox mailbox;
  EXPECT_FALSE(mailbox.has_value_within(1ms));
  std::thread sender([&] { mailbox.put(7); });
  EXPECT_EQ(mailbox.take(), 7);
  sender.join();
}

TEST(Mutex, WaitWithoutConditionReturnsAfterNotify) {
  Mutex mutex;
  ConditionVariable changed;
  bool ready = false;
  UniqueLock lock(mutex);
  std::thread sender([&] {
    const MutexLock theirs(mutex);
    ready = true;
    changed.notify_one();
  });
  while (!ready) changed.wait(lock);
  lock.unlock();
  sender.join();
}

TEST(Mutex, UniqueLockUnlocksAndLocksAgain) {
  Mutex mutex;
  std::atomic<bool> touched = false;
  UniqueLock lock(mutex);
  std::thread other = touch(mutex, touched);
  std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(touched) << "the lock is held";
  lock.unlock();
  other.join();
  EXPECT_TRUE(touched);
  lock.lock();
}

TEST(Mutex, MutexUnlockLocksAgainAtItsEnd) {
  Mutex mutex;
  std::atomic<bool> touched = false;
  const MutexLock lock(mutex);
  {
    const MutexUnlock unlocked(mutex);
    touch(mutex, touched).join();
  }
  EXPECT_TRUE(touched.exchange(false));
  std::thread other = touch(mutex, touched);
  std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(touched) << "the lock is held again";
  const MutexUnlock unlocked(mutex);
  other.join();
}

TEST(Mutex, ReadersShareALockThatExcludesWriters) {
  SharedMutex mutex;
  std::atomic<bool> read = false, touched = false;
  std::thread writer;
  {
    const SharedLock lock(mutex);
    std::thread([&] {
      const SharedLock theirs(mutex);
      read = true;
    }).join();
    EXPECT_TRUE(read);
    writer = touch(mutex, touched);
    std::this_thread::sleep_for(1ms);
    EXPECT_FALSE(touched) << "a reader holds the lock";
  }
  writer.join();
  EXPECT_TRUE(touched);
}

TEST(Mutex, OneThreadLocksARecursiveMutexTwice) {
  RecursiveMutex mutex;
  std::atomic<bool> touched = false;
  std::thread other;
  const auto lock_again = [&] { const MutexLock lock(mutex); };
  {
    const MutexLock lock(mutex);
    lock_again();
    other = touch(mutex, touched);
    std::this_thread::sleep_for(1ms);
    EXPECT_FALSE(touched) << "the lock is still held";
  }
  other.join();
  EXPECT_TRUE(touched);
}

}  // namespace bellows
