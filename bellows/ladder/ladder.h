#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/core/registry.h"
#include "bellows/core/stats.h"
#include "bellows/ladder/verdict.h"
#include "bellows/system/machine.h"
#include "bellows/techniques/technique.h"

namespace bellows::train {

/// Training time by phase, as measured on the training thread.
/// Units: milliseconds
struct StepShares {
  double load_ms = 0;  ///< waiting for the batch, or loading it on the training thread
  double forward_ms = 0;
  double backward_ms = 0;
  double optimizer_ms = 0;
  double other_ms = 0;  ///< metrics, learning-rate schedules, overhead of the training loop
  double total_ms() const { return load_ms + forward_ms + backward_ms + optimizer_ms + other_ms; }
};

/// A training run from scratch that the ladder controls, or a model that the ladder runs on inputs (inference_ladder.h).
/// Threads: not thread-safe. Between calls, the job must not use the processor for long. It may fill its queues, but
///          must then wait
class LadderJob {
 public:
  virtual ~LadderJob() = default;
  /// Runs `n` optimizer steps, across epochs, and returns when they are done.
  /// Returns: the number of samples in these steps
  virtual int64_t run_steps(int64_t n) = 0;
  /// If code for later steps is still being compiled in the background, runs one step.
  /// Returns: true if no compilation is running
  virtual bool settle() { return true; }
  virtual int64_t steps_per_epoch() const = 0;
  virtual int64_t samples_per_epoch() const = 0;
  /// Returns the share of correctly classified held-out samples, in [0, 1]. The evaluation has no effect on the run.
  virtual double evaluate() = 0;
  /// Returns the peak of live bytes since the previous call; 0 if it is not measured.
  virtual int64_t take_peak_bytes() { return 0; }
  /// Returns the time of all steps so far by phase, without `other_ms`. All values are 0 if they are not measured.
  virtual StepShares phases() { return {}; }
  /// Describes the bottleneck of data loading and the most helpful change, in one or two sentences. Returns an empty
  /// text if this is not measured.
  virtual std::string bottleneck() { return ""; }
  /// Returns the size of the model's parameters and buffers in bytes; 0 if it is not measured.
  virtual int64_t model_bytes() { return 0; }
  /// Returns by how much the outputs differ from those of rung 0, relative to the outputs; NaN if it is not measured.
  virtual double output_difference() { return std::numeric_limits<double>::quiet_NaN(); }
  /// Returns a remark for the report, such as the layers that stay in floating point; usually empty.
  virtual std::string remark() { return ""; }
  /// Returns the bytes that a rank has sent so far, as a ring sends them. With replicas in one process, returns the bytes
  /// that all replicas have copied and added. Returns -1 if there is only one model.
  virtual int64_t sent_bytes() { return -1; }
};

/// Starts the runs that the ladder compares.
class LadderJobs {
 public:
  virtual ~LadderJobs() = default;
  /// Starts the plain program, rung 0. This can be a program without any code of Bellows (plain_libtorch.h), or Bellows
  /// with all techniques off.
  virtual std::unique_ptr<LadderJob> plain(uint64_t seed) = 0;
  virtual std::unique_ptr<LadderJob> with(const Recipe& recipe, uint64_t seed) = 0;
};

/// Functions that the ladder uses to measure and to stop. Tests can replace them.
struct LadderInstruments {
  std::function<double()> seconds;  ///< a steady clock; if empty, the system's steady clock is used
  /// Called between windows, between evaluations, and between steps that wait for compiled code. If it returns true,
  /// the ladder ends early.
  std::function<bool()> stop;
};

enum class LadderGoal {
  speed,  ///< each rung must shorten the time to target
  /// Each rung must lower the peak, regardless of the cost in time, and still reach the target.
  memory,
  inference,  ///< each rung must shorten the forward pass, and the accuracy must hold (inference_ladder.h)
  /// Each rung is compared with rung 0, and possibly runs on several ranks (comparison.h).
  comparison,
};

/// Returns "speed", "memory", "inference" or "comparison".
std::string_view to_string(LadderGoal goal);

struct LadderOptions {
  // Goal.
  LadderGoal goal = LadderGoal::speed;
  double target_accuracy = 0.97;
  /// A run that has not reached the target after this many epochs has failed. With the goal `speed`, a run that takes
  /// 2.5 times as long as the plain program has also failed.
  int64_t max_epochs = 30;
  /// With the goal `inference`: largest loss of accuracy compared with rung 0, as a share. 0.005 is half a percentage
  /// point.
  double max_drop = 0.005;
  /// With the goal `inference`, and if there is no accuracy: largest difference of the outputs from those of rung 0,
  /// relative to the outputs (LadderJob::output_difference()).
  double max_difference = 0.2;
  // Accuracy of the measurement.
  /// Minimum number of pairs of alternating timed windows per comparison; at least 5.
  int pairs = 9;
  /// Maximum number of pairs. Windows are added until the ends of the interval differ by at most 5 %.
  int max_pairs = 17;
  /// Approximate minimum duration of a window in seconds. If possible, a window consists of complete epochs.
  double window_s = 0.25;
  /// Number of runs to the target with different seeds: seed, seed + 1, …. For the total speedup, the plain program and
  /// the last kept rung run alternately with these seeds. Rungs that are judged by the target, and their previous
  /// configurations, also run with these seeds. Faster lossy rungs and their previous configurations run with these
  /// seeds, too. All other faster rungs run to the target once and are evaluated half as often.
  int seeds = 3;
  uint64_t seed = 1;
  /// Number of steps between evaluations, counted in the plain batch size. If it is 0, training is evaluated whenever
  /// the number of processed samples has grown by 3 %. While the accuracy is far from the target, evaluations are less
  /// frequent. The time to target then has a resolution of about 3 %, or about 6 % for rungs that run once.
  int64_t eval_every_steps = 0;
  /// No further rung starts after this time.
  double max_seconds = std::numeric_limits<double>::infinity();
};

/// The minimum and maximum of several runs, or the ends of an interval. Both are NaN if there are no values.
struct Range {
  double low = std::numeric_limits<double>::quiet_NaN();
  double high = std::numeric_limits<double>::quiet_NaN();
};

/// The held-out accuracy during one run.
struct AccuracyCurve {
  struct Point {
    double seconds = 0;  ///< training time in seconds so far, without evaluation
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
  std::string note;         ///< reason for the verdict
  std::string expectation;  ///< the expected effect and its reason, from the table of techniques
  /// Technique::is_about_loading. If true, reports show `bottleneck`.
  bool is_about_loading = false;
  int64_t batch_size = 0;
  double learning_rate = 0;
  /// Times and rates of the plain program come from its runs to the target. Those of a rung are the values of the plain
  /// program multiplied by the ratios of all rungs up to it. Changes in the machine's speed over time therefore do not
  /// affect them. The values refer to the mean step of an epoch. For a rung that is judged by the target, they refer to
  /// the mean step of its runs. Until the ladder ends, only the first run of the plain program is used.
  double step_ms = unknown;
  double samples_per_s = unknown;
  Range step_ms_interval, samples_per_s_interval;  ///< 90 % intervals
  /// Maximum over all runs to the target. If the rung has no such run, maximum over its first steps. With several ranks,
  /// maximum over the ranks.
  int64_t peak_bytes = 0;
  double time_to_target_s = unknown;  ///< training time only; median over the seeds
  Range time_to_target_range;         ///< over the seeds; NaN if there is only one seed
  /// At the end of training; median over the seeds. With the goal `inference`, of the whole evaluation data.
  double accuracy = unknown;
  Range accuracy_range;
  double epochs = unknown;  ///< number of epochs until the target; median over the seeds
  /// Times of all runs of seeds that ran to the target several times. Only the last run of each seed counts.
  std::string runs_again;
  bool judged_by_target = false;  ///< whether `speedup` refers to the time to target instead of samples per second
  /// Speedup over the previous configuration. A single pair of runs has no interval.
  RatioInterval speedup;
  /// Samples per second relative to the plain program. This ratio is the product of the speedups up to this rung.
  RatioInterval samples_per_s_over_start;
  /// Median time to target of the plain program divided by that of this rung, if both have at least two seeds.
  double target_over_start = unknown;
  /// Peak of the previous configuration divided by that of this rung. If it is above 1, the rung saves memory. Both
  /// peaks are those of runs to the target. If the rung has no such run, both peaks are those of the first steps.
  double memory_ratio = unknown;
  /// Peak of the plain program divided by that of this rung, in runs to the target.
  double memory_over_start = unknown;
  Effect expected_speed = Effect::unknown, measured_speed = Effect::unknown;
  Effect expected_memory = Effect::unknown, measured_memory = Effect::unknown;
  std::vector<AccuracyCurve> curves;   ///< one curve per seed
  StepShares shares;                   ///< phases of the mean step of its runs to the target; 0 if not measured
  std::string bottleneck;              ///< LadderJob::bottleneck() of its last run
  int64_t model_bytes = 0;             ///< LadderJob::model_bytes()
  double output_difference = unknown;  ///< LadderJob::output_difference()
  int ranks = 1;                       ///< number of processes that train together
  int64_t threads = 0;                 ///< with the goal `comparison`: number of threads of each process
  double sent_bytes = unknown;         ///< bytes that LadderJob::sent_bytes() counts in a step
  bool kept() const { return verdict == Verdict::kept; }
};

struct LadderReport {
  Machine machine;
  std::string model, data;
  LadderOptions options;
  RungResult plain;
  std::vector<RungResult> rungs;
  /// Time to target of the plain program divided by that of the last kept rung, with paired seeds. With one seed, there
  /// is no interval (NaN). With the goal `inference`, the ratio of the samples per second of the last kept rung and of
  /// rung 0.
  RatioInterval speedup;
  /// With the goal `inference`: time per batch of rung 0 and of the last kept rung in the windows of `speedup`. Their ratio
  /// is `speedup`. Times of the rungs come from other windows, so they may differ.
  double start_step_ms = RungResult::unknown, top_step_ms = RungResult::unknown;
  /// Samples per second of the last kept rung that has the batch size and learning rate of the plain program, divided
  /// by the samples per second of the plain program.
  RatioInterval speedup_equal_batch;
  std::string recipe_yaml;   ///< recipe of the last kept rung
  double seconds = 0;        ///< duration of the ladder in seconds
  bool interrupted = false;  ///< whether stop() ended the ladder before all rungs were measured
  /// Reason why the comparison of the plain program with the last kept rung is incomplete; empty if it is complete.
  std::string failure;

  /// Returns the last kept rung, or rung 0 if no rung was kept. With the goal `comparison`, returns the fastest of the kept
  /// rungs.
  const RungResult& top() const;
};

/// Progress report of the ladder.
struct LadderEvent {
  const RungResult* rung = nullptr;  ///< the rung that is being measured, with its results so far
  /// One of "warm-up", "windows", "accuracy", "target", "target, seed 2", "previous, seed 2", "plain, seed 2", "all, seed 2" or
  /// "done".
  std::string activity;
  int64_t done = 0, total = 0;                                                   ///< progress of this activity
  double run_seconds = RungResult::unknown, run_accuracy = RungResult::unknown;  ///< values of the current run
  bool finished = false;  ///< whether all results of the rung are available
};

/// Returns the techniques of a ladder in order. For the goal `memory`, these are the techniques that save memory. For
/// the goal `speed`, these are all techniques except those that save memory but are expected to cost time.
std::vector<Technique> techniques_for(const Registry<Technique>& registry, LadderGoal goal);

/// Measures one technique after another. Each rung adds one technique to the previous configuration, which is the last
/// configuration that was kept.
///
/// First, the rung and the previous configuration run at least five pairs of timed windows alternately, with the same
/// number of samples. Before each window, some untimed steps consume the batches that were prefetched during the window
/// of the other configuration. On a noisy machine, more pairs follow. The rung counts as faster if the 90 % interval of
/// the ratio is above 1. If it is not faster, its measurement ends.
///
/// Then, a faster rung must reach the target from scratch. If the rung is lossy, the previous configuration also trains
/// to the target with the same seeds, and the median time of the rung must be lower.
///
/// A rung that is judged by the target has no windows. Instead, the rung and the previous configuration train to the
/// target alternately. The interval of the ratio of their times must be above 1. With one seed, the ratio must be above
/// 1.1.
///
/// With the goal `memory`, the peak must fall by at least 1 %, and windows only show the cost in time.
///
/// Evaluation is not timed. The batches that a loader prefetches during evaluation are not timed either; there are at
/// most `prefetch` such batches. At the end, the plain program and the last kept rung train to the target alternately.
/// The ratio of their times is the total speedup. If this comparison fails, the report contains the error.
/// Params: recipe – the recipe that corresponds to the plain program, before the first technique is applied
///         techniques – techniques in the order of the ladder
/// Cost:   (rungs + 1) × (2 · pairs windows + 1 run to the target). Each faster lossy rung needs up to 2 · seeds runs,
///         and each rung that is judged by the target up to 4 · seeds runs. The total speedup needs 2 · seeds runs
/// Throws: c10::ValueError if an option is out of range, or if the plain program does not reach the target
LadderReport run_ladder(const Recipe& recipe, const std::vector<Technique>& techniques, LadderJobs& jobs,
                        const LadderOptions& options, const LadderInstruments& instruments,
                        const std::function<void(const LadderEvent&)>& on_event = {});

}  // namespace bellows::train
