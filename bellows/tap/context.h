#pragma once

#include <memory>
#include <thread>
#include <utility>

namespace at {
class ThreadLocalState;
class ThreadLocalStateGuard;
}  // namespace at

namespace bellows::tap {

/// A snapshot of libtorch's thread-local state: all taps, grad mode, autocast, inference mode and profiler. Autograd's
/// workers receive this state automatically. Threads that you start yourself have the default state. Use ContextGuard
/// to apply a snapshot on such a thread.
/// Threads: may be used on several threads at once
class Context {
 public:
  /// Captures the state of the calling thread.
  static Context capture();

 private:
  friend class ContextGuard;
  std::shared_ptr<const at::ThreadLocalState> state_;
};

/// Applies a snapshot to this thread while the guard exists. The destructor restores the previous state.
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

/// Starts a std::thread that runs `function()` with the thread-local state of the calling thread.
template <class Function>
std::thread thread(Function&& function) {
  return std::thread([context = Context::capture(), run = std::forward<Function>(function)]() mutable {
    ContextGuard guard(context);
    run();
  });
}

}  // namespace bellows::tap
