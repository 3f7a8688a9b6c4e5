#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/train/ladder.h"

namespace bellows::train {

/// Thrown, and caught by run_ladder, when the instruments' stop() says so.
struct LadderStopped {};

/// Seconds per sample of jobs that took turns, window by window.
struct TimedWindows {
  std::vector<std::vector<double>> seconds_per_sample;  ///< by job
  double median_of(size_t job) const { return median(seconds_per_sample.at(job)); }
};

/// One run from scratch until the target, or until max_epochs.
struct TargetRun {
  double seconds = 0;  ///< of training; evaluation is outside
  double accuracy = 0;
  int64_t epochs = 0;
  int64_t peak_bytes = 0;  ///< of training
  bool reached = false;
};

/// The two measurements that the ladder is made of.
class LadderMeasure {
 public:
  using Progress = std::function<void(const std::string& activity, int64_t done, int64_t total)>;
  using Start = std::function<std::unique_ptr<LadderJob>(uint64_t seed)>;

  LadderMeasure(const LadderOptions& options, const LadderInstruments& instruments, Progress progress);

  /// Throws: LadderStopped
  TimedWindows windows(const std::vector<LadderJob*>& jobs) const;
  /// Throws: LadderStopped
  TargetRun to_target(const Start& start, uint64_t seed, const std::string& activity) const;
  double seconds() const { return instruments_.seconds(); }

 private:
  int64_t samples_per_window(LadderJob& job) const;
  bool enough(const TimedWindows& windows) const;
  void check_stop() const;

  const LadderOptions& options_;
  LadderInstruments instruments_;
  Progress progress_;
};

}  // namespace bellows::train
