#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "bellows/ladder/ladder.h"
#include "bellows/system/stop.h"

namespace bellows::train {

/// Thrown if stop() of LadderInstruments returns true. run_ladder() catches it.
using LadderStopped = Stopped;

/// Timed windows of alternating jobs.
struct TimedWindows {
  std::vector<std::vector<double>> seconds_per_sample;  ///< for each job, the seconds per sample in each of its windows
};

/// A run from scratch that ends at the target or at a limit.
struct TargetRun {
  uint64_t seed = 0;
  double seconds = 0;  ///< training time in seconds, without evaluation
  double accuracy = 0;
  double epochs = 0;
  int64_t steps = 0, samples = 0;
  int64_t peak_bytes = 0;  ///< during training
  bool reached = false;
  bool rough = false;                        ///< whether it was evaluated half as often
  std::vector<double> earlier_s;             ///< training times of earlier runs with this seed
  StepShares phases;                         ///< sum over all steps
  std::string bottleneck;                    ///< LadderJob::bottleneck() at the end of the run
  std::vector<AccuracyCurve::Point> points;  ///< one point per evaluation
};

/// Progress report of a measurement.
struct MeasureProgress {
  std::string activity;
  int64_t done = 0, total = 0;
  const TimedWindows* windows = nullptr;  ///< the windows so far
  const TargetRun* run = nullptr;         ///< the run so far
};

/// Limits that end a run.
struct TargetLimits {
  double seconds = std::numeric_limits<double>::infinity();
  int64_t epochs = std::numeric_limits<int64_t>::max();  ///< number of epochs; max_epochs applies if it is lower
};

/// The two measurements of the ladder.
class LadderMeasure {
 public:
  using Progress = std::function<void(const MeasureProgress&)>;
  using Start = std::function<std::unique_ptr<LadderJob>(uint64_t seed)>;

  /// Params: plain_batch – batch size of the plain program, in which `eval_every_steps` is counted
  LadderMeasure(const LadderOptions& options, const LadderInstruments& instruments, int64_t plain_batch,
                Progress progress);

  /// Throws: LadderStopped
  TimedWindows windows(const std::vector<LadderJob*>& jobs) const;
  /// Params: rough – whether to evaluate half as often
  ///         limits – limits that end the run
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
