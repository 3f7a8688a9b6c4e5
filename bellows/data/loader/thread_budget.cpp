#include "bellows/data/loader/thread_budget.h"

#include <algorithm>

#include "bellows/system/machine.h"

namespace bellows::data {

namespace {

constexpr double kWaits = 0.05, kDoesNotWait = 0.01;  // shares of a window; nothing changes between them
constexpr double kFasterBy = 1.03;                    // required increase of samples/s to keep a thread
constexpr double kFreeCore = 0.5;
constexpr double kMostlyWaiting = 0.5;  // share of the workers' time; above it, threads do not occupy a core
constexpr double kFull = 0.85;          // maximum load of the remaining threads
constexpr int64_t kCalmWindows = 4, kLongestPause = 256, kWaitingThreadsPerCore = 4;

}  // namespace

int64_t usable_cores() {
  static const int64_t cores = this_machine().usable_threads();
  return cores;
}

ThreadBudget::ThreadBudget(int64_t cores)
    : cores_(std::max<int64_t>(1, cores)), threads_(std::clamp<int64_t>(cores / 4, 1, 4)) {}

int64_t ThreadBudget::most() const {
  return kWaitingThreadsPerCore * cores_;
}

int64_t ThreadBudget::update(const BudgetWindow& window) {
  if (window.seconds <= 0) return threads_;
  const double rate = static_cast<double>(window.samples) / window.seconds;
  const double waited = window.wait_s / window.seconds;
  judge_growth(rate, waited > kWaits);
  pause_ = std::max<int64_t>(0, pause_ - 1);
  const auto count = static_cast<double>(threads_);
  const bool one_too_many = threads_ > 1 && window.busy_s / window.seconds < kFull * (count - 1);
  calm_ = waited < kDoesNotWait && one_too_many ? calm_ + 1 : 0;
  if (waited > kWaits && pause_ == 0) {
    grow(window, rate);
  } else if (calm_ >= kCalmWindows) {
    --threads_;
    calm_ = 0;
  }
  return threads_;
}

void ThreadBudget::judge_growth(double rate, bool waits) {
  if (before_ == 0) return;
  if (waits && rate < kFasterBy * rate_before_) {
    threads_ = before_;
    pause_ = next_pause_ + 1;
    next_pause_ = std::min(2 * next_pause_, kLongestPause);
  } else {
    next_pause_ = 8;
  }
  before_ = 0;
}

void ThreadBudget::grow(const BudgetWindow& window, double rate) {
  const bool waiting = window.blocked_share > kMostlyWaiting;
  const double free = static_cast<double>(cores_) - window.process_cpu_s / window.seconds;
  const int64_t limit = waiting ? most() : cores_;
  if (threads_ >= limit || (!waiting && free < kFreeCore)) return;
  before_ = threads_;
  rate_before_ = rate;
  threads_ = std::min(limit, threads_ + std::max<int64_t>(1, threads_ / 2));
}

}  // namespace bellows::data
