#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "bellows/core/machine.h"
#include "bellows/core/stats.h"
#include "bellows/train/technique.h"

namespace bellows::train {

/// One training run from scratch, as the ladder drives it.
/// Threads: one owner. While it is not called it must use no processor time for long: it may fill its queues, then
/// wait.
class LadderJob {
 public:
  virtual ~LadderJob() = default;
  /// Takes `n` optimizer steps, across the ends of epochs, and returns when their work is done.
  /// Returns: samples that went through the model
  virtual int64_t run_steps(int64_t n) = 0;
  virtual int64_t steps_per_epoch() const = 0;
  virtual int64_t samples_per_epoch() const = 0;
  /// Share of the held-out samples that are classified correctly, in [0, 1]. The run goes on as if it had not been
  /// asked.
  virtual double evaluate() = 0;
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
  std::function<double()> seconds;      ///< a steady clock; empty: the system's
  std::function<void()> reset_peak;     ///< forget the memory peak; empty: peaks are 0
  std::function<int64_t()> peak_bytes;  ///< highest sum of live bytes since then
  std::function<bool()> stop;           ///< asked between windows and epochs; true ends the ladder early, in order
};

struct LadderOptions {
  // What is measured.
  double target_accuracy = 0.97;
  int64_t max_epochs = 30;  ///< a run that has not reached the target by then has failed to
  // How well.
  int pairs = 11;         ///< alternating pairs of timed windows per comparison, at least 5 …
  int max_pairs = 27;     ///< … and up to so many, until the interval is tight: its ends within 5 % of each other
  double window_s = 0.3;  ///< a window is at least about this long; a whole number of epochs where one fits
  int seeds = 5;          ///< runs to the target per rung: seed, seed + 1, …; for the total, twice as many
  uint64_t seed = 1;
  double max_seconds = std::numeric_limits<double>::infinity();  ///< no further rung is started after this long
};

enum class Verdict { kept, no_effect, slower, misses_target, later_at_target, does_not_apply, not_measured };
/// "kept", "no effect", "slower", "misses the target", "later at target", "does not apply", "not measured".
std::string_view to_string(Verdict verdict);

/// What was measured of one rung. Figures that were not measured are NaN (times, accuracy) or 0 (counts).
struct RungResult {
  std::string technique;  ///< "plain" for rung 0
  std::string title;
  Verdict verdict = Verdict::not_measured;
  std::string note;  ///< the verdict's reason in words
  int64_t batch_size = 0;
  double learning_rate = 0;
  /// Plain's own figure is measured; a rung's is that of the rung below times `speedup`, so that windows of another hour
  /// of the machine do not contradict the ratio. The mean step of an epoch.
  double step_ms = std::numeric_limits<double>::quiet_NaN();
  double samples_per_s = std::numeric_limits<double>::quiet_NaN();
  int64_t peak_bytes = 0;
  double time_to_target_s = std::numeric_limits<double>::quiet_NaN();  ///< training only; median over the seeds
  double accuracy = std::numeric_limits<double>::quiet_NaN();          ///< when training ended; median over the seeds
  double epochs = std::numeric_limits<double>::quiet_NaN();            ///< to the target; median over the seeds
  RatioInterval speedup;  ///< samples per second over the rung below, the last one that was kept
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
  RatioInterval
      speedup_equal_batch;   ///< samples per second, last kept rung with plain's batch and learning rate over plain
  std::string recipe_yaml;   ///< the recipe of the last kept rung
  double seconds = 0;        ///< that the ladder took
  bool interrupted = false;  ///< stop() said so: what is there was measured, the rest was not
};

/// News while the ladder runs.
struct LadderEvent {
  std::string title;                     ///< the rung that is being measured
  std::string activity;                  ///< "timed windows", "to the target, seed 2 of 3"
  int64_t done = 0, total = 0;           ///< of this activity
  const RungResult* finished = nullptr;  ///< set when a rung, or the plain program, has its figures
};

/// Measures technique after technique on one job: each rung switches one more on over the last one that was kept.
///
/// A rung and the one below it take turns in at least five pairs of windows of equally many samples; before each window
/// some steps go untimed, so that neither starts with a queue that was filled while the other ran. On a machine that is
/// not quiet more pairs follow. A rung counts as faster if the 90 % interval of the ratio lies above 1. It must then reach the target from scratch with every seed; a lossy
/// one, or one with another batch or learning rate, has to do so in less time than the rung below. Evaluation is
/// outside all clocks. At the end plain and the last kept rung train to the target in turns for the total speed-up.
/// Params:  recipe – of the rung above plain, before the first technique: what `plain` does, in Bellows
///          techniques – in the order to climb
/// Cost:    (rungs + 1) × (2 · pairs windows + seeds runs to the target) + 4 · seeds runs
/// Throws:  c10::ValueError – an option out of range; the plain program does not reach the target
LadderReport run_ladder(const Recipe& recipe, const std::vector<Technique>& techniques, LadderJobs& jobs,
                        const LadderOptions& options, const LadderInstruments& instruments,
                        const std::function<void(const LadderEvent&)>& on_event = {});

/// The report as JSON: machine, baseline, rungs, speedup, speedup_equal_batch, and what explains them. NaN becomes
/// null.
std::string to_json(const LadderReport& report);

}  // namespace bellows::train
