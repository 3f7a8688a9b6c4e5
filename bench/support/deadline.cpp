#include <algorithm>
#include <chrono>

#include "bench/support/bench.h"
#include "bench/support/quick.h"

namespace bellows::bench {

namespace {

Deadline& deadline_of_run() {
  static Deadline deadline;
  return deadline;
}

}  // namespace

double Deadline::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Deadline::Deadline(double seconds, Clock clock) : clock_(std::move(clock)), end_(clock_() + seconds) {}

double Deadline::left_s() const {
  return clock_ ? std::max(0.0, end_ - clock_()) : end_;
}

Deadline run_deadline() {
  return deadline_of_run();
}

void set_run_deadline(const Deadline& deadline) {
  deadline_of_run() = deadline;
}

}  // namespace bellows::bench
