#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <stop_token>
#include <string>
#include <utility>

#include "bellows/system/thread.h"

namespace bellows::comm {

/// A wait that is not silent: it logs what it waits for after 10 s, and again whenever it has taken twice as long.
class WaitReport {
 public:
  /// Params: who – "init: rank 0"; timeout_s – when the caller gives up, for the message; 0: never
  WaitReport(std::string who, double timeout_s) : who_(std::move(who)), timeout_s_(timeout_s) {}

  double waited_s() const { return std::chrono::duration<double>(Clock::now() - since_).count(); }
  /// Call it a few times a second.
  /// Params: what – "rank 1", called only when it is logged
  void report(const std::function<std::string()>& what);

 private:
  using Clock = std::chrono::steady_clock;

  const std::string who_;
  const double timeout_s_;
  const Clock::time_point since_ = Clock::now();
  double next_s_ = 10;
};

/// Runs `work` on another thread, so that a peer that does not answer cannot keep this thread from logging and stopping.
/// Params: work – gets a token that is stopped once its result is no longer needed; owns all that it uses
///         look – called many times a second until the work is done; may throw, which ends the wait
/// Throws: what `work` or `look` throws
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
