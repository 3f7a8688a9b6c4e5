#pragma once

#include <memory>
#include <thread>
#include <utility>

namespace at {
class ThreadLocalState;
class ThreadLocalStateGuard;
}  // namespace at

namespace bellows::tap {

/// The thread-local state of libtorch at one moment: all taps, and grad mode, autocast, inference mode and profiler
/// beside them. Autograd's workers get it by themselves; a thread that the user starts begins with nothing and is given
/// it by ContextGuard.
/// Threads: may be used on any number of threads at once
class Context {
 public:
  /// That of the calling thread.
  static Context capture();

 private:
  friend class ContextGuard;
  std::shared_ptr<const at::ThreadLocalState> state_;
};

/// Puts a captured state in place on this thread while it lives, then the thread's own again.
class ContextGuard {
 public:
  explicit ContextGuard(const Context& context);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  std::shared_ptr<const at::ThreadLocalState> keep_;
  std::unique_ptr<at::ThreadLocalStateGuard> guard_;
};

/// A std::thread that runs `function()` under the taps of the thread that starts it.
template <class Function>
std::thread thread(Function&& function) {
  return std::thread([context = Context::capture(), run = std::forward<Function>(function)]() mutable {
    ContextGuard guard(context);
    run();
  });
}

}  // namespace bellows::tap
