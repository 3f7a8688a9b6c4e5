#pragma once

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "bench/support/bench.h"

namespace bellows::bench {

/// Times of a run with --quick, in seconds from its start. Until the first time, new rows may start. At the second time, a running row is
/// stopped. The rest of the minute is for the preparation in script/bench.
constexpr double quick_s = 44, quick_stop_s = 52;

void set_run_deadline(const Deadline& deadline);

/// Returns whether the results of all rows of all reports so far were equal.
bool rows_so_far_equal();

/// While this object lives, a run that lasts longer than `quick_stop_s` is ended. Its output so far stays printed and written. Its files
/// in the folder for temporary files are deleted.
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
  std::jthread thread_;  ///< last member, so it ends before the other members are destroyed
};

}  // namespace bellows::bench
