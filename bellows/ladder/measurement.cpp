#include "bellows/ladder/measurement.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "bellows/core/log.h"

namespace bellows::train {

namespace {

constexpr double tight = 1.05;        // a 90 % interval is narrow enough if its ends differ by this ratio
constexpr double granularity = 0.03;  // of the time to target
constexpr double far_off = 4;         // multiple of the error rate that the target allows
constexpr double longest_settling_s = 600;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Number of steps of `job` with about `samples` samples. Uses whole epochs if possible, so that windows include the
/// ends of epochs.
int64_t steps_for(const LadderJob& job, int64_t samples) {
  const auto steps = static_cast<double>(job.steps_per_epoch());
  const double epochs = static_cast<double>(samples) / static_cast<double>(job.samples_per_epoch());
  return std::max<int64_t>(1, std::llround(epochs >= 0.5 ? std::round(epochs) * steps : epochs * steps));
}

}  // namespace

LadderMeasure::LadderMeasure(const LadderOptions& options, const LadderInstruments& instruments, int64_t plain_batch,
                             Progress progress)
    : options_(options), instruments_(instruments), plain_batch_(plain_batch), progress_(std::move(progress)) {
  if (!instruments_.seconds) instruments_.seconds = steady_seconds;
  if (!instruments_.stop) instruments_.stop = [] { return false; };
}

void LadderMeasure::check_stop() const {
  if (instruments_.stop()) throw LadderStopped("ladder: stopped on request.");
}

/// Only the width of the interval ends a comparison. Stopping when 1 is outside would favor chance results.
bool LadderMeasure::enough(const TimedWindows& windows) const {
  const auto& series = windows.seconds_per_sample;
  const auto pairs = static_cast<int>(series.front().size());
  if (pairs < options_.pairs) return false;
  if (series.size() < 2 || pairs >= options_.max_pairs) return true;
  const RatioInterval ratio = paired_ratio(series[1], series[0]);
  return ratio.high / ratio.low <= tight;
}

/// Waits for compiled code. After a timeout, the run is measured without it.
/// Returns: whether the compiled code is ready
bool LadderMeasure::settle(LadderJob& job) const {
  const double begin = seconds();
  while (!job.settle()) {
    check_stop();
    if (seconds() - begin < longest_settling_s) continue;
    log_warn("ladder: code is still being compiled after ", longest_settling_s,
             " s. The measurement continues without the compiled code.");
    return false;
  }
  return true;
}

int64_t LadderMeasure::samples_per_window(LadderJob& job) const {
  double elapsed = 0;
  int64_t samples = 0;
  for (int64_t steps = 1; elapsed < options_.window_s / 3 && steps < (int64_t{1} << 20); steps *= 2) {
    check_stop();
    const double start = seconds();
    samples = job.run_steps(steps);
    elapsed = seconds() - start;
  }
  return std::max<int64_t>(1, std::llround(static_cast<double>(samples) * options_.window_s / std::max(elapsed, 1e-9)));
}

TimedWindows LadderMeasure::windows(const std::vector<LadderJob*>& jobs) const {
  progress_({.activity = "warm-up", .total = options_.pairs});
  std::vector<bool> settles;
  for (LadderJob* job : jobs) {
    job->run_steps(4);
    settles.push_back(settle(*job));
  }
  const int64_t samples = samples_per_window(*jobs.back());
  TimedWindows result{std::vector<std::vector<double>>(jobs.size())};
  for (int pair = 0; !enough(result); ++pair) {
    progress_({.activity = "windows", .done = pair, .total = std::max(pair + 1, options_.pairs), .windows = &result});
    for (size_t i = 0; i < jobs.size(); ++i) {
      check_stop();
      const int64_t steps = steps_for(*jobs[i], samples);
      // Untimed: consumes batches that were prefetched while the other job ran.
      jobs[i]->run_steps(std::max<int64_t>(1, steps / 5));
      settles[i] = settles[i] && settle(*jobs[i]);
      const double start = seconds();
      const int64_t done = jobs[i]->run_steps(steps);
      result.seconds_per_sample[i].push_back((seconds() - start) / static_cast<double>(done));
    }
  }
  return result;
}

/// Evaluation costs as much as some steps, so it is rare while the accuracy is far from the target.
int64_t LadderMeasure::samples_to_evaluation(const TargetRun& run, int64_t samples_per_epoch, bool rough) const {
  if (options_.eval_every_steps > 0) return options_.eval_every_steps * plain_batch_;
  const auto so_far = static_cast<double>(run.samples);
  double best = 0;  // the accuracy may fall again
  for (const auto& point : run.points) best = std::max(best, point.accuracy);
  if (1 - best < far_off * (1 - options_.target_accuracy)) {
    return std::llround((rough ? 2 : 1) * granularity * so_far);
  }
  return std::max<int64_t>(samples_per_epoch / 8, std::llround(far_off * granularity * so_far));
}

TargetRun LadderMeasure::to_target(const Start& start, uint64_t seed, const std::string& activity, bool rough,
                                   const TargetLimits& limits) const {
  TargetRun run{.seed = seed, .rough = rough};
  const std::unique_ptr<LadderJob> job = start(seed);
  const int64_t per_epoch = job->samples_per_epoch();
  job->take_peak_bytes();  // discards the peak of earlier jobs
  const auto max_epochs = static_cast<double>(std::min(limits.epochs, options_.max_epochs));
  while (run.epochs < max_epochs && run.seconds < limits.seconds && !run.reached) {
    check_stop();
    // Computed each time, because the batch size may grow.
    const double step_samples = static_cast<double>(per_epoch) / static_cast<double>(job->steps_per_epoch());
    const auto samples = static_cast<double>(samples_to_evaluation(run, per_epoch, rough));
    const int64_t steps = std::max<int64_t>(1, std::llround(samples / step_samples));
    const double begin = seconds();
    const int64_t done = job->run_steps(steps);
    run.seconds += seconds() - begin;
    run.peak_bytes = std::max(run.peak_bytes, job->take_peak_bytes());
    run.steps += steps;
    run.samples += done;
    run.epochs = static_cast<double>(run.samples) / static_cast<double>(per_epoch);
    run.accuracy = job->evaluate();
    run.reached = run.accuracy >= options_.target_accuracy;
    run.points.push_back({.seconds = run.seconds, .samples = run.samples, .accuracy = run.accuracy});
    job->take_peak_bytes();  // discards the peak of the evaluation
    progress_(
        {.activity = activity, .done = static_cast<int64_t>(run.epochs), .total = options_.max_epochs, .run = &run});
  }
  run.phases = job->phases();
  run.bottleneck = job->bottleneck();
  return run;
}

}  // namespace bellows::train
