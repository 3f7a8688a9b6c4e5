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

/// Where the time of training goes, on the thread that trains.
/// Units: milliseconds
struct StepShares {
  double load_ms = 0;  ///< waiting for the batch, or making it
  double forward_ms = 0;
  double backward_ms = 0;
  double optimizer_ms = 0;
  double other_ms = 0;  ///< metrics, schedules, the loop itself
  double total_ms() const { return load_ms + forward_ms + backward_ms + optimizer_ms + other_ms; }
};

/// One training run from scratch, as the ladder drives it.
/// Threads: one owner. While it is not called it must use no processor time for long: it may fill its queues, then
/// wait.
class LadderJob {
 public:
  virtual ~LadderJob() = default;
  /// Takes `n` optimizer steps, across the ends of epochs, and returns when their work is done.
  /// Returns: samples that went through the model
  virtual int64_t run_steps(int64_t n) = 0;
  /// Takes a step if code for later ones is still being compiled in the background.
  /// Returns: none is
  virtual bool settle() { return true; }
  virtual int64_t steps_per_epoch() const = 0;
  virtual int64_t samples_per_epoch() const = 0;
  /// Share of the held-out samples that are classified correctly, in [0, 1]. The run goes on as if it had not been
  /// asked.
  virtual double evaluate() = 0;
  /// The highest sum of live bytes since the last call. 0: not counted.
  virtual int64_t take_peak_bytes() { return 0; }
  /// Of all steps so far, without `other_ms`. All 0: not measured.
  virtual StepShares phases() { return {}; }
  /// What the loader's time goes into and what would help it most, in a sentence or two. Empty: not measured.
  virtual std::string bottleneck() { return ""; }
};

/// Starts the runs that the ladder compares.
class LadderJobs {
 public:
  virtual ~LadderJobs() = default;
  /// The plain program, rung 0, with nothing of Bellows in it.
  virtual std::unique_ptr<LadderJob> plain(uint64_t seed) = 0;
  virtual std::unique_ptr<LadderJob> with(const Recipe& recipe, uint64_t seed) = 0;
};

/// What the ladder measures with. Tests replace them.
struct LadderInstruments {
  std::function<double()> seconds;  ///< a steady clock; empty: the system's
  /// Asked between windows, evaluations, and steps before compiled code is ready; true ends the ladder early, in order.
  std::function<bool()> stop;
};

enum class LadderGoal {
  speed,   ///< each rung has to bring the target nearer
  memory,  ///< each rung has to lower the peak, whatever time it costs, and still reach the target
};

struct LadderOptions {
  // What is measured.
  LadderGoal goal = LadderGoal::speed;
  double target_accuracy = 0.97;
  int64_t max_epochs = 30;  ///< a run that has not reached the target by then has failed to; with the goal speed, nor
                            ///< one that has taken 2.5 times as long as plain
  // How well.
  int pairs = 9;           ///< alternating pairs of timed windows per comparison, at least 5 …
  int max_pairs = 17;      ///< … and up to so many, until the interval is tight: its ends within 5 % of each other
  double window_s = 0.25;  ///< a window is at least about this long; a whole number of epochs where one fits
  /// Runs to the target from seed, seed + 1, …: of plain and the top in turns for the total, of a rung that changes the
  /// course of training and the one below it. Other rungs that are faster run once, and are looked at half as often.
  int seeds = 3;
  uint64_t seed = 1;
  /// Held-out accuracy is measured every so many steps of plain's batch. 0: when training has gone 3 % further, and
  /// less often while the accuracy is far from the target, so that the time to the target is known to about 3 %, that
  /// of a rung that runs once to about 6 %.
  int64_t eval_every_steps = 0;
  double max_seconds = std::numeric_limits<double>::infinity();  ///< no further rung is started after this long
};

/// The least and the greatest of several runs, or the ends of an interval; NaN when there is none.
struct Range {
  double low = std::numeric_limits<double>::quiet_NaN();
  double high = std::numeric_limits<double>::quiet_NaN();
};

/// Held-out accuracy over the course of one run.
struct AccuracyCurve {
  struct Point {
    double seconds = 0;  ///< of training so far, without evaluation
    int64_t samples = 0;
    double accuracy = 0;
  };
  uint64_t seed = 0;
  std::vector<Point> points;
};

/// What was measured of one rung. Figures that were not measured are NaN (times, accuracy) or 0 (counts).
struct RungResult {
  static constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

  std::string technique;  ///< "plain" for rung 0
  std::string title;
  Verdict verdict = Verdict::not_measured;
  std::string note;               ///< the verdict's reason in words
  std::string expectation;        ///< what the registry says it does, and why
  bool is_about_loading = false;  ///< Technique::is_about_loading: `bottleneck` is shown
  int64_t batch_size = 0;
  double learning_rate = 0;
  /// Plain's is that of its runs to the target; a rung's is plain's times the ratios on the way, so that windows of
  /// another hour of the machine do not contradict them. The mean step of an epoch; of a rung that is judged by the
  /// target, of its runs. Until the ladder ends, plain's first run stands for all.
  double step_ms = unknown;
  double samples_per_s = unknown;
  Range step_ms_interval, samples_per_s_interval;  ///< 90 %
  int64_t peak_bytes = 0;                          ///< the highest of all runs; without one, of the first steps
  double time_to_target_s = unknown;               ///< training only; median over the seeds
  Range time_to_target_range;                      ///< over the seeds; NaN for one
  double accuracy = unknown;                       ///< when training ended; median over the seeds
  Range accuracy_range;
  double epochs = unknown;        ///< to the target; median over the seeds
  std::string runs_again;         ///< seeds that ran to the target more than once: all their times, the last one counts
  bool judged_by_target = false;  ///< `speedup` is of the time to the target, not of samples per second
  RatioInterval speedup;          ///< over the rung below, the last one that was kept; one pair of runs has no interval
  /// Samples per second over plain's: the product of these ratios up to this rung.
  RatioInterval samples_per_s_over_start;
  double target_over_start = unknown;  ///< plain's median time to the target over this one's, from two seeds each on
  /// Peak of the rung below over this one's: above 1 it saves memory. Both of runs to the target; of a rung that has
  /// none, both of the first steps.
  double memory_ratio = unknown;
  double memory_over_start = unknown;  ///< of runs to the target
  Effect expected_speed = Effect::unknown, measured_speed = Effect::unknown;
  Effect expected_memory = Effect::unknown, measured_memory = Effect::unknown;
  std::vector<AccuracyCurve> curves;  ///< one a seed
  StepShares shares;                  ///< of the mean step of its runs to the target; 0 where not measured
  std::string bottleneck;             ///< LadderJob::bottleneck of its last run
  bool kept() const { return verdict == Verdict::kept; }
};

struct LadderReport {
  Machine machine;
  std::string model, data;
  LadderOptions options;
  RungResult plain;
  std::vector<RungResult> rungs;
  RatioInterval speedup;  ///< time to target, plain over the last kept rung, the same seeds side by side; one seed has
                          ///< no interval (NaN)
  RatioInterval speedup_equal_batch;  ///< samples per second, last kept rung with plain's batch and learning rate over
                                      ///< plain
  std::string recipe_yaml;            ///< the recipe of the last kept rung
  double seconds = 0;                 ///< that the ladder took
  bool interrupted = false;           ///< stop() said so: what is there was measured, the rest was not
  std::string failure;                ///< why the comparison of plain with all that was kept is not whole; else empty

  /// The last rung that was kept; plain if none was.
  const RungResult& top() const;
};

/// News while the ladder runs.
struct LadderEvent {
  const RungResult* rung = nullptr;  ///< the one that is being measured, with what is known of it so far
  std::string activity;         ///< "warm-up", "windows", "target 2/3" (the seed), "below 2/3", "plain 2/3", "all 2/3"
  int64_t done = 0, total = 0;  ///< of this activity
  double run_seconds = RungResult::unknown, run_accuracy = RungResult::unknown;  ///< of the run in progress
  bool finished = false;                                                         ///< the rung has its figures
};

/// The rows that a ladder climbs, in their order. Memory: those that save it. Speed: all but those that are expected to
/// cost time.
std::vector<Technique> techniques_for(const Registry<Technique>& registry, LadderGoal goal);

/// Measures technique after technique on one job: each rung switches one more on over the last one that was kept.
///
/// A rung and the one below it take turns in at least five pairs of windows of equally many samples; before each
/// window some steps go untimed, so that neither starts with a queue that was filled while the other ran. On a machine
/// that is not quiet more pairs follow. A rung counts as faster if the 90 % interval of the ratio lies above 1;
/// otherwise nothing more is measured of it. It must then reach the target from scratch; a lossy one and the rung
/// below do so with the same seeds, and the median of its times has to be the lower one. A rung that is judged by the
/// target has no windows: it and the one below train to the target in turns, and the interval of the ratio of these
/// times has to lie above 1; with one seed, the ratio has to be above 1.1. With the goal memory, the peak has to fall
/// by at least 1 %; windows only say what it costs. Evaluation is outside all clocks; what a loader prefetches
/// meanwhile, `prefetch` batches at most, is not counted against it. At the end plain and the last kept rung train to
/// the target in turns for the total speed-up; an error there is noted in the report.
/// Params:  recipe – of the rung above plain, before the first technique: what `plain` does, in Bellows
///          techniques – in the order to climb
/// Cost:    (rungs + 1) × (2 · pairs windows + 1 run to the target); 2 · seeds runs for each rung that changes the
///          course of training, and for the total
/// Throws:  c10::ValueError – an option out of range; the plain program does not reach the target
LadderReport run_ladder(const Recipe& recipe, const std::vector<Technique>& techniques, LadderJobs& jobs,
                        const LadderOptions& options, const LadderInstruments& instruments,
                        const std::function<void(const LadderEvent&)>& on_event = {});

}  // namespace bellows::train
