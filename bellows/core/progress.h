#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace bellows {

/// Reports the progress of a long task to the log sink, at most ten times per second.
/// Threads: not thread-safe
class Progress {
 public:
  /// Params: total – number of units; 0 if unknown
  Progress(std::string label, int64_t total, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t units, std::string_view detail = {});
  /// Reports the end of the task. The destructor calls finish() if you did not call it.
  void finish(std::string_view detail = {});

 private:
  using Clock = std::chrono::steady_clock;
  void report(bool finished);

  std::string label_, unit_, detail_;
  int64_t done_ = 0, total_ = 0;
  Clock::time_point start_, last_report_;
  bool finished_ = false;
};

}  // namespace bellows
