#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "bellows/ladder/ladder.h"
#include "bellows/system/stop.h"

namespace bellows::train {

/// Thrown if the instruments' stop() returns true. run_ladder() catches it.
using LadderStopped = Stopped;

/// Seconds per sample of alternating jobs, by window.
struct TimedWindows {
  std::vector<std::vector<double>> seconds_per_sample;  ///< by job
};

/// A run from scratch until the target, or until a limit.
struct TargetRun {
  uint64_t seed = 0;
  double seconds = 0;  ///< training time, without evaluation
  double accuracy = 0;
  double epochs = 0;
  int64_t steps = 0, samples = 0;
  int64_t peak_bytes = 0;  ///< during training
  bool reached = false;
  bool rough = false;                        ///< evaluated half as often
  std::vector<double> earlier_s;             ///< `seconds` of earlier runs with this seed
  StepShares phases;                         ///< sum over all steps
  std::string bottleneck;                    ///< LadderJob::bottleneck() at its end
  std::vector<AccuracyCurve::Point> points;  ///< one per evaluation
};

/// Progress within a measurement.
struct MeasureProgress {
  std::string activity;
  int64_t done = 0, total = 0;
  const TimedWindows* windows = nullptr;  ///< so far
  const TargetRun* run = nullptr;         ///< so far
};

/// Limits of a run.
struct TargetLimits {
  double seconds = std::numeric_limits<double>::infinity();
  int64_t epochs = std::numeric_limits<int64_t>::max();  ///< max_epochs if that is lower
};

/// The two measurements of the ladder.
class LadderMeasure {
 public:
  using Progress = std::function<void(const MeasureProgress&)>;
  using Start = std::function<std::unique_ptr<LadderJob>(uint64_t seed)>;

  /// Params: plain_batch – batch size in which `eval_every_steps` is counted
  LadderMeasure(const LadderOptions& options, const LadderInstruments& instruments, int64_t plain_batch,
                Progress progress);

  /// Throws: LadderStopped
  TimedWindows windows(const std::vector<LadderJob*>& jobs) const;
  /// Params: rough – double the distance between evaluations
  ///         limits – of the run
  /// Throws: LadderStopped
  TargetRun to_target(const Start& start, uint64_t seed, const std::string& activity, bool rough = false,
                      const TargetLimits& limits = {}) const;
  double seconds() const { return instruments_.seconds(); }

 private:
  int64_t samples_per_window(LadderJob& job) const;
  int64_t samples_to_evaluation(const TargetRun& run, int64_t samples_per_epoch, bool rough) const;
  bool enough(const TimedWindows& windows) const;
  bool settle(LadderJob& job) const;
  void check_stop() const;

  const LadderOptions& options_;
  LadderInstruments instruments_;
  const int64_t plain_batch_;
  Progress progress_;
};

}  // namespace bellows::train
