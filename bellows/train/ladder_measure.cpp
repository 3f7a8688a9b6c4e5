#include "bellows/train/ladder_measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace bellows::train {

namespace {

constexpr double tight = 1.05;  // ends of an interval over one another: as far as a 90 % interval needs to be known

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Steps of `job` that are about `samples` samples: whole epochs where one is not much longer, so that windows hold the
/// epochs' ends.
int64_t steps_for(const LadderJob& job, int64_t samples) {
  const auto steps = static_cast<double>(job.steps_per_epoch());
  const double epochs = static_cast<double>(samples) / static_cast<double>(job.samples_per_epoch());
  return std::max<int64_t>(1, std::llround(epochs >= 0.5 ? std::round(epochs) * steps : epochs * steps));
}

}  // namespace

LadderMeasure::LadderMeasure(const LadderOptions& options, const LadderInstruments& instruments, Progress progress)
    : options_(options), instruments_(instruments), progress_(std::move(progress)) {
  if (!instruments_.seconds) instruments_.seconds = steady_seconds;
  if (!instruments_.reset_peak) instruments_.reset_peak = [] {};
  if (!instruments_.peak_bytes) instruments_.peak_bytes = [] { return int64_t{0}; };
  if (!instruments_.stop) instruments_.stop = [] { return false; };
}

void LadderMeasure::check_stop() const {
  if (instruments_.stop()) throw LadderStopped{};
}

/// Only the interval's width may end a comparison. If "1 lies outside" did, noise would sooner or later end it there.
bool LadderMeasure::enough(const TimedWindows& windows) const {
  const auto& series = windows.seconds_per_sample;
  const auto pairs = static_cast<int>(series.front().size());
  if (pairs < options_.pairs) return false;
  if (series.size() < 2 || pairs >= options_.max_pairs) return true;
  const RatioInterval ratio = paired_ratio(series[1], series[0]);
  return ratio.high / ratio.low <= tight;
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
  progress_("warm-up", 0, options_.pairs);
  for (LadderJob* job : jobs) job->run_steps(3);
  const int64_t samples = samples_per_window(*jobs.back());
  TimedWindows result{std::vector<std::vector<double>>(jobs.size())};
  for (int pair = 0; !enough(result); ++pair) {
    progress_("timed windows", pair, std::max(pair + 1, options_.pairs));
    for (size_t i = 0; i < jobs.size(); ++i) {
      check_stop();
      const int64_t steps = steps_for(*jobs[i], samples);
      jobs[i]->run_steps(std::max<int64_t>(1, steps / 5));  // untimed: uses up what was prefetched while the other ran
      const double start = seconds();
      const int64_t done = jobs[i]->run_steps(steps);
      result.seconds_per_sample[i].push_back((seconds() - start) / static_cast<double>(done));
    }
  }
  return result;
}

TargetRun LadderMeasure::to_target(const Start& start, uint64_t seed, const std::string& activity) const {
  TargetRun run;
  instruments_.reset_peak();
  const std::unique_ptr<LadderJob> job = start(seed);
  while (run.epochs < options_.max_epochs && !run.reached) {
    check_stop();
    progress_(activity, run.epochs, options_.max_epochs);
    const double begin = seconds();
    job->run_steps(job->steps_per_epoch());
    run.seconds += seconds() - begin;
    run.peak_bytes = std::max(run.peak_bytes, instruments_.peak_bytes());
    run.accuracy = job->evaluate();
    run.reached = run.accuracy >= options_.target_accuracy;
    ++run.epochs;
    instruments_.reset_peak();
  }
  return run;
}

}  // namespace bellows::train
