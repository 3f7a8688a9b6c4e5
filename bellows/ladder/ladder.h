#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "bellows/core/registry.h"
#include "bellows/core/stats.h"
#include "bellows/ladder/verdict.h"
#include "bellows/system/machine.h"
#include "bellows/techniques/technique.h"

namespace bellows::train {

/// Training time by phase, on the training thread.
/// Units: milliseconds
struct StepShares {
  double load_ms = 0;  ///< waiting for the batch, or loading it
  double forward_ms = 0;
  double backward_ms = 0;
  double optimizer_ms = 0;
  double other_ms = 0;  ///< metrics, schedules, overhead of the loop
  double total_ms() const { return load_ms + forward_ms + backward_ms + optimizer_ms + other_ms; }
};

/// A training run from scratch, as the ladder drives it.
/// Threads: not thread-safe. Between calls, it must not use the processor for long: it may fill its queues, then must
///          wait
class LadderJob {
 public:
  virtual ~LadderJob() = default;
  /// Runs `n` optimizer steps, across epochs, and returns when they are done.
  /// Returns: number of samples
  virtual int64_t run_steps(int64_t n) = 0;
  /// Runs a step if code for later steps is still being compiled in the background.
  /// Returns: whether no compilation is running
  virtual bool settle() { return true; }
  virtual int64_t steps_per_epoch() const = 0;
  virtual int64_t samples_per_epoch() const = 0;
  /// Share of correctly classified held-out samples, in [0, 1]. It has no effect on the run.
  virtual double evaluate() = 0;
  /// The peak of live bytes since the last call; 0: not measured.
  virtual int64_t take_peak_bytes() { return 0; }
  /// Phases of all steps so far, without `other_ms`. All 0: not measured.
  virtual StepShares phases() { return {}; }
  /// The bottleneck of data loading and the most helpful change, in one or two sentences. Empty: not measured.
  virtual std::string bottleneck() { return ""; }
};

/// Starts the runs that the ladder compares.
class LadderJobs {
 public:
  virtual ~LadderJobs() = default;
  /// The plain program, rung 0, without any code of Bellows.
  virtual std::unique_ptr<LadderJob> plain(uint64_t seed) = 0;
  virtual std::unique_ptr<LadderJob> with(const Recipe& recipe, uint64_t seed) = 0;
};

/// Instruments of the ladder, which tests can replace.
struct LadderInstruments {
  std::function<double()> seconds;  ///< a steady clock; empty: the system's
  /// Called between windows, evaluations, and steps before compiled code is ready. If it returns true, the ladder ends
  /// early.
  std::function<bool()> stop;
};

enum class LadderGoal {
  speed,   ///< each rung must shorten the time to target
  memory,  ///< each rung must lower the peak at any cost in time, and still reach the target
};

struct LadderOptions {
  // Goal.
  LadderGoal goal = LadderGoal::speed;
  double target_accuracy = 0.97;
  /// A run that has not reached the target by then has failed. With the goal speed, so has a run that takes 2.5 times
  /// as long as the plain program.
  int64_t max_epochs = 30;
  // Accuracy of the measurement.
  int pairs = 9;           ///< pairs of alternating timed windows per comparison, at least 5 …
  int max_pairs = 17;      ///< … and up to this many, until the ends of the interval differ by at most 5 %
  double window_s = 0.25;  ///< minimum duration of a window, approximately; whole epochs if possible
  /// Number of runs to the target with seed, seed + 1, …: of plain and the last kept rung, in turns, for the total; and
  /// of rungs that change the course of training and their previous configuration. Other faster rungs run once and are
  /// evaluated half as often.
  int seeds = 3;
  uint64_t seed = 1;
  /// Steps of the plain batch size between evaluations. 0: whenever training has progressed by 3 %, and less often
  /// while the accuracy is far from the target. Then the time to target has a resolution of about 3 %, and about 6 %
  /// for rungs that run once.
  int64_t eval_every_steps = 0;
  double max_seconds = std::numeric_limits<double>::infinity();  ///< no further rung is started after this time
};

/// The minimum and maximum of several runs, or the ends of an interval; NaN if there is none.
struct Range {
  double low = std::numeric_limits<double>::quiet_NaN();
  double high = std::numeric_limits<double>::quiet_NaN();
};

/// Held-out accuracy during one run.
struct AccuracyCurve {
  struct Point {
    double seconds = 0;  ///< training time so far, without evaluation
    int64_t samples = 0;
    double accuracy = 0;
  };
  uint64_t seed = 0;
  std::vector<Point> points;
};

/// The results of one rung. Values that were not measured are NaN (times, accuracy) or 0 (counts).
struct RungResult {
  static constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

  std::string technique;  ///< "plain" for rung 0
  std::string title;
  Verdict verdict = Verdict::not_measured;
  std::string note;               ///< reason for the verdict
  std::string expectation;        ///< the expected effect and its reason, from the table of techniques
  bool is_about_loading = false;  ///< Technique::is_about_loading: reports show `bottleneck`
  int64_t batch_size = 0;
  double learning_rate = 0;
  /// Values of the plain program come from its runs to the target. Those of a rung are plain's times the ratios of all
  /// rungs in between, so that changes of the machine's speed over time do not affect them. They refer to the mean step
  /// of an epoch, or of the runs of a rung that is judged by the target. Until the ladder ends, plain's first run is
  /// used.
  double step_ms = unknown;
  double samples_per_s = unknown;
  Range step_ms_interval, samples_per_s_interval;  ///< 90 %
  int64_t peak_bytes = 0;                          ///< maximum over all runs; without a run, over the first steps
  double time_to_target_s = unknown;               ///< training only; median over the seeds
  Range time_to_target_range;                      ///< over the seeds; NaN for one
  double accuracy = unknown;                       ///< at the end of training; median over the seeds
  Range accuracy_range;
  double epochs = unknown;        ///< until the target; median over the seeds
  std::string runs_again;         ///< all times of seeds that ran to the target several times; the last one counts
  bool judged_by_target = false;  ///< `speedup` refers to the time to target, not to samples per second
  RatioInterval speedup;          ///< over the previous configuration; a single pair of runs has no interval
  /// Samples per second relative to plain: the product of the speedups up to this rung.
  RatioInterval samples_per_s_over_start;
  /// Plain's median time to target over this rung's, if both have at least two seeds.
  double target_over_start = unknown;
  /// Peak of the previous configuration over this rung's: above 1 it saves memory. Both refer to runs to the target, or
  /// to the first steps if the rung has no run.
  double memory_ratio = unknown;
  double memory_over_start = unknown;  ///< of runs to the target
  Effect expected_speed = Effect::unknown, measured_speed = Effect::unknown;
  Effect expected_memory = Effect::unknown, measured_memory = Effect::unknown;
  std::vector<AccuracyCurve> curves;  ///< one per seed
  StepShares shares;                  ///< of the mean step of its runs to the target; 0 if not measured
  std::string bottleneck;             ///< LadderJob::bottleneck() of its last run
  bool kept() const { return verdict == Verdict::kept; }
};

struct LadderReport {
  Machine machine;
  std::string model, data;
  LadderOptions options;
  RungResult plain;
  std::vector<RungResult> rungs;
  /// Time to target, plain over the last kept rung, with paired seeds; with one seed, there is no interval (NaN).
  RatioInterval speedup;
  /// Samples per second, the last kept rung with plain's batch size and learning rate over plain.
  RatioInterval speedup_equal_batch;
  std::string recipe_yaml;   ///< recipe of the last kept rung
  double seconds = 0;        ///< duration of the ladder
  bool interrupted = false;  ///< stop() ended the ladder; the remaining rungs were not measured
  /// Why the comparison of plain with the last kept rung is incomplete; "" if it is complete.
  std::string failure;

  /// The last kept rung; plain if none was kept.
  const RungResult& top() const;
};

/// Progress of the ladder.
struct LadderEvent {
  const RungResult* rung = nullptr;  ///< the rung in progress, with its results so far
  /// "warm-up", "windows", "target", "target, seed 2", "previous, seed 2", "plain, seed 2", "all, seed 2" or "done".
  std::string activity;
  int64_t done = 0, total = 0;                                                   ///< of this activity
  double run_seconds = RungResult::unknown, run_accuracy = RungResult::unknown;  ///< of the current run
  bool finished = false;                                                         ///< the rung has its results
};

/// The techniques of a ladder in their order. Memory: those that save memory. Speed: all except those that save memory
/// at an expected cost in time.
std::vector<Technique> techniques_for(const Registry<Technique>& registry, LadderGoal goal);

/// Measures one technique after another. Each rung adds a technique to the last configuration that was kept.
///
/// A rung and the previous configuration alternate in at least five pairs of windows with the same number of samples.
/// Before each window, some untimed steps consume batches that were prefetched during the other's window. If the
/// machine is noisy, more pairs follow. A rung counts as faster if the 90 % interval of the ratio is above 1;
/// otherwise, its measurement ends.
///
/// A faster rung must then reach the target from scratch. A lossy rung and the previous configuration do so with the
/// same seeds, and the rung's median time must be lower.
///
/// A rung that is judged by the target has no windows: it and the previous configuration train to the target in turns.
/// The interval of the ratio of these times must be above 1; with one seed, the ratio must be above 1.1.
///
/// With the goal memory, the peak must fall by at least 1 %, and windows only show the cost in time.
///
/// Evaluation is not timed, and neither are the batches that a loader prefetches meanwhile, at most `prefetch`. At the
/// end, plain and the last kept rung train to the target in turns for the total speedup; an error there is recorded in
/// the report.
/// Params:  recipe – the recipe that corresponds to the plain program, before the first technique
///          techniques – in the order of the ladder
/// Cost:    (rungs + 1) × (2 · pairs windows + 1 run to the target); 2 · seeds runs for each rung that changes the
///          course of training, and for the total
/// Throws:  c10::ValueError if an option is out of range or the plain program does not reach the target
LadderReport run_ladder(const Recipe& recipe, const std::vector<Technique>& techniques, LadderJobs& jobs,
                        const LadderOptions& options, const LadderInstruments& instruments,
                        const std::function<void(const LadderEvent&)>& on_event = {});

}  // namespace bellows::train
