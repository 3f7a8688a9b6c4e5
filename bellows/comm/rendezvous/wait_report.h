#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <stop_token>
#include <string>
#include <utility>

#include "bellows/core/log.h"
#include "bellows/system/thread.h"

namespace bellows::comm {

/// Logs the reason for a wait after 10 s, and again each time the waiting time has doubled.
class WaitReport {
 public:
  /// Params: who – the waiting process, such as "init: rank 0"; timeout_s – timeout that the message states; 0 if there
  ///               is none
  WaitReport(std::string who, double timeout_s) : who_(std::move(who)), timeout_s_(timeout_s) {}

  double waited_s() const { return std::chrono::duration<double>(Clock::now() - since_).count(); }
  /// Call this function several times a second during the wait.
  /// Params: what – returns what the process is waiting for, such as "rank 1". It is called only for logging
  void report(const std::function<std::string()>& what) {
    const double waited = waited_s();
    if (waited < next_s_) return;
    next_s_ = 2 * waited;
    const std::string limit = timeout_s_ > 0 ? c10::str(" s of ", timeout_s_, " s") : " s";
    log_warn(who_, " is waiting for ", what(), " (", static_cast<int64_t>(waited), limit, ")");
  }

 private:
  using Clock = std::chrono::steady_clock;

  const std::string who_;
  const double timeout_s_;
  const Clock::time_point since_ = Clock::now();
  double next_s_ = 10;
};

/// Runs `work` on another thread. While the calling thread waits, it can still log, and can give up if a peer does not
/// respond.
/// Params: work – receives a stop token. A stop is requested when the result is no longer needed. `work` must own
///                everything that it uses, because it may outlive the call
///         look – called repeatedly until the work is done. If it throws, the wait ends
/// Throws: exceptions from `work` and `look`
template <class Work>
auto in_background(Work work, const std::function<void()>& look) {
  std::stop_source abandoned;
  std::packaged_task<decltype(work(abandoned.get_token()))()> task(
      [work = std::move(work), token = abandoned.get_token()] { return work(token); });
  auto result = task.get_future();
  start_thread("comm", std::move(task)).detach();
  try {
    while (result.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) look();
  } catch (...) {
    abandoned.request_stop();
    throw;
  }
  return result.get();
}

}  // namespace bellows::comm
