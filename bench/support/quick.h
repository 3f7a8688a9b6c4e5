#pragma once

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "bench/support/bench.h"

namespace bellows::bench {

/// Of a run with --quick, from its start: rows choose by the first, and what then still runs is stopped at the second. The
/// rest of the minute is for what script/bench does before.
constexpr double quick_s = 44, quick_stop_s = 52;

void set_run_deadline(const Deadline& deadline);

/// Whether the results of all rows that any report has had were equal.
bool rows_so_far_equal();

/// While it lives: a run that is not over `quick_stop_s` after its start ends, with what it has printed and written. What it
/// keeps in the folder for temporary files goes with it.
class QuickGuard {
 public:
  QuickGuard();
  ~QuickGuard();
  QuickGuard(const QuickGuard&) = delete;
  QuickGuard& operator=(const QuickGuard&) = delete;

 private:
  void wait_and_stop(const std::stop_token& stop);

  std::filesystem::path folder_;
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread thread_;  // the last: it ends before the others do
};

}  // namespace bellows::bench
