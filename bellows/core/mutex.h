#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <utility>

// Annotations for Clang's thread-safety analysis, which script/lint runs. They are empty for other compilers.
// Ref: https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#if defined(__clang__)
#define BELLOWS_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define BELLOWS_THREAD_SAFETY(attribute)
#endif

/// Add this macro after the name of a member or variable. Only code that holds `mutex` may then access the member or
/// variable. The macro with PT applies to the memory that a pointer points to, not to the pointer.
#define BELLOWS_GUARDED_BY(mutex) BELLOWS_THREAD_SAFETY(guarded_by(mutex))
#define BELLOWS_PT_GUARDED_BY(mutex) BELLOWS_THREAD_SAFETY(pt_guarded_by(mutex))
/// Add this macro after a function's parameters if callers must hold the mutex.
#define BELLOWS_REQUIRES(...) BELLOWS_THREAD_SAFETY(requires_capability(__VA_ARGS__))
/// Add this macro after a function's parameters if callers must not hold the mutex, because the function locks it.
#define BELLOWS_EXCLUDES(...) BELLOWS_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
/// Add one of these macros after a function's parameters if the function locks or unlocks the mutex. Without an
/// argument, the mutex is the object itself.
#define BELLOWS_ACQUIRE(...) BELLOWS_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define BELLOWS_ACQUIRE_SHARED(...) BELLOWS_THREAD_SAFETY(acquire_shared_capability(__VA_ARGS__))
#define BELLOWS_RELEASE(...) BELLOWS_THREAD_SAFETY(release_capability(__VA_ARGS__))
#define BELLOWS_RELEASE_SHARED(...) BELLOWS_THREAD_SAFETY(release_shared_capability(__VA_ARGS__))
/// Add this macro after a function's parameters to exclude the function from the analysis. State the reason in a
/// comment.
#define BELLOWS_NO_THREAD_SAFETY_ANALYSIS BELLOWS_THREAD_SAFETY(no_thread_safety_analysis)
/// Add one of these macros after the keyword `class`. A class with BELLOWS_CAPABILITY is a mutex. A class with
/// BELLOWS_SCOPED_CAPABILITY locks a mutex in its constructor and unlocks it in its destructor.
#define BELLOWS_CAPABILITY(kind) BELLOWS_THREAD_SAFETY(capability(kind))
#define BELLOWS_SCOPED_CAPABILITY BELLOWS_THREAD_SAFETY(scoped_lockable)

namespace bellows {

/// A std::mutex with annotations for the analysis.
class BELLOWS_CAPABILITY("mutex") Mutex {
 public:
  void lock() BELLOWS_ACQUIRE() { mutex_.lock(); }
  void unlock() BELLOWS_RELEASE() { mutex_.unlock(); }

 private:
  friend class UniqueLock;
  std::mutex mutex_;
};

/// A std::recursive_mutex with annotations for the analysis.
class BELLOWS_CAPABILITY("mutex") RecursiveMutex {
 public:
  void lock() BELLOWS_ACQUIRE() { mutex_.lock(); }
  void unlock() BELLOWS_RELEASE() { mutex_.unlock(); }

 private:
  std::recursive_mutex mutex_;
};

/// A std::shared_mutex with annotations for the analysis.
class BELLOWS_CAPABILITY("mutex") SharedMutex {
 public:
  void lock() BELLOWS_ACQUIRE() { mutex_.lock(); }
  void unlock() BELLOWS_RELEASE() { mutex_.unlock(); }
  void lock_shared() BELLOWS_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() BELLOWS_RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

/// Locks a mutex of any of these classes exclusively while the object exists, like std::lock_guard.
template <class AnyMutex>
class BELLOWS_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(AnyMutex& mutex) BELLOWS_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() BELLOWS_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  AnyMutex& mutex_;
};

/// Locks a SharedMutex for reading while the object exists, like std::shared_lock.
class BELLOWS_SCOPED_CAPABILITY SharedLock {
 public:
  explicit SharedLock(SharedMutex& mutex) BELLOWS_ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.lock_shared(); }
  ~SharedLock() BELLOWS_RELEASE() { mutex_.unlock_shared(); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  SharedMutex& mutex_;
};

/// Locks a Mutex while the object exists, like std::unique_lock. Meanwhile, you can unlock the mutex, lock it again,
/// and wait on a ConditionVariable.
class BELLOWS_SCOPED_CAPABILITY UniqueLock {
 public:
  explicit UniqueLock(Mutex& mutex) BELLOWS_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~UniqueLock() BELLOWS_RELEASE() {}
  UniqueLock(const UniqueLock&) = delete;
  UniqueLock& operator=(const UniqueLock&) = delete;

  void lock() BELLOWS_ACQUIRE() { lock_.lock(); }
  void unlock() BELLOWS_RELEASE() { lock_.unlock(); }

 private:
  friend class ConditionVariable;
  std::unique_lock<std::mutex> lock_;
};

/// Unlocks a locked Mutex while the object exists, and then locks it again. Use it in functions whose caller holds the
/// lock.
class BELLOWS_SCOPED_CAPABILITY MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) BELLOWS_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~MutexUnlock() BELLOWS_RELEASE() { mutex_.lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

/// A std::condition_variable for use with UniqueLock. If a condition reads guarded members, annotate it with their
/// mutex: `changed_.wait(lock, [this]() BELLOWS_REQUIRES(mutex_) { return ready_; })`.
class ConditionVariable {
 public:
  void notify_one() noexcept { changed_.notify_one(); }
  void notify_all() noexcept { changed_.notify_all(); }

  void wait(UniqueLock& lock) { changed_.wait(lock.lock_); }

  template <class Condition>
  void wait(UniqueLock& lock, Condition condition) {
    changed_.wait(lock.lock_, std::move(condition));
  }

  /// Waits until the variable is notified or the time has passed. It may also return earlier.
  template <class Rep, class Period>
  void wait_for(UniqueLock& lock, const std::chrono::duration<Rep, Period>& time) {
    changed_.wait_for(lock.lock_, time);
  }

  /// Returns: whether the condition holds
  template <class Rep, class Period, class Condition>
  bool wait_for(UniqueLock& lock, const std::chrono::duration<Rep, Period>& time, Condition condition) {
    return changed_.wait_for(lock.lock_, time, std::move(condition));
  }

 private:
  std::condition_variable changed_;
};

}  // namespace bellows
