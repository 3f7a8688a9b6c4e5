#include "bellows/system/stop.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "bellows/core/log.h"

namespace bellows {

namespace {

std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

constexpr std::chrono::seconds silence{10};
constexpr std::chrono::milliseconds look_every{20};

}  // namespace

void request_stop() noexcept {
  requested = true;
}

bool stop_requested() noexcept {
  return requested;
}

void clear_stop() noexcept {
  requested = false;
}

void throw_if_stopped(const std::string& what) {
  if (stop_requested()) throw Stopped("stopped on request while " + what + ".");
}

void LongWait::check() {
  if (stop_requested()) throw Stopped("stopped on request while waiting for " + what_ + ".");
  note();
}

void LongWait::note() {
  if (said_ || Clock::now() - begin_ < silence) return;
  said_ = true;
  log_warn("Waiting for ", what_, " for ", silence.count(), " s", note_.empty() ? "." : " (" + note_ + ").");
}

void LongWait::sleep(std::chrono::milliseconds time) {
  const auto end = Clock::now() + time;
  for (check(); Clock::now() < end; check()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    std::this_thread::sleep_for(std::clamp(left, std::chrono::milliseconds(1), look_every));
  }
}

}  // namespace bellows
