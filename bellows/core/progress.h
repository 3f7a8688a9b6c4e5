#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace bellows {

/// Progress of one long piece of work, reported through the log sink at most ten times a second.
/// Threads: not thread-safe; one owner.
class Progress {
 public:
  /// Params: total – units in all, 0 when unknown
  Progress(std::string label, int64_t total, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t units, std::string_view detail = {});
  /// Reports the end; the destructor does so if this was not called.
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
