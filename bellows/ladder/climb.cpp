#include "bellows/ladder/climb.h"

#include <cmath>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/ladder/results.h"

namespace bellows::train {

void check_measurement(const LadderOptions& options) {
  TORCH_CHECK_VALUE(options.pairs >= 5, "ladder: expected at least 5 pairs of windows, got ", options.pairs, ".");
  TORCH_CHECK_VALUE(options.max_pairs >= options.pairs, "ladder: expected max_pairs to be at least pairs (",
                    options.pairs, "), got ", options.max_pairs, ".");
  TORCH_CHECK_VALUE(options.window_s > 0, "ladder: expected window_s above 0, got ", options.window_s, ".");
}

void check_training(const LadderOptions& options) {
  TORCH_CHECK_VALUE(options.target_accuracy > 0 && options.target_accuracy <= 1,
                    "run_ladder: expected target_accuracy in (0, 1], got ", options.target_accuracy,
                    ". Write 97 % as 0.97.");
  check_measurement(options);
  TORCH_CHECK_VALUE(options.seeds >= 1, "run_ladder: expected at least 1 seed, got ", options.seeds, ".");
  TORCH_CHECK_VALUE(options.max_epochs >= 1, "run_ladder: expected max_epochs of at least 1, got ", options.max_epochs,
                    ".");
  TORCH_CHECK_VALUE(options.eval_every_steps >= 0, "run_ladder: expected eval_every_steps of at least 0, got ",
                    options.eval_every_steps, ".");
}

LadderClimb::LadderClimb(const LadderOptions& options, const LadderInstruments& instruments, int64_t plain_batch,
                         OnEvent on_event, std::vector<RungResult> rungs)
    : options_(options),
      measure_(options_, instruments, plain_batch, [this](const MeasureProgress& progress) { show(progress); }),
      on_event_(std::move(on_event)) {
  report_.machine = this_machine();
  report_.options = options_;
  report_.rungs = std::move(rungs);
}

LadderReport LadderClimb::run() {
  const double start = measure_.seconds();
  bool started = false;
  try {
    measure_start();
    started = true;
    announce(report_.plain);
    climb(start);
    if (kept_rung_ > 0) {
      now_ = kept_rung_;
      measure_total();
    }
  } catch (const LadderStopped&) {
    report_.interrupted = true;
  } catch (const std::exception& error) {
    if (!started) throw;  // without rung 0 there is nothing to report
    report_.failure = user_message(error);
  }
  finish();
  report_.seconds = measure_.seconds() - start;
  return std::move(report_);
}

void LadderClimb::climb(double start) {
  for (size_t rung = 1; rung <= report_.rungs.size(); ++rung) {
    RungResult& result = result_of(rung);
    if (measure_.seconds() - start > options_.max_seconds) {
      result.note = c10::str("the time limit of ", format_seconds(options_.max_seconds), " was reached");
      continue;
    }
    const std::string reason = obstacle(rung);
    if (reason.empty()) {
      measure_or_fail(rung);
    } else {
      result.verdict = Verdict::does_not_apply;
      result.note = reason;
    }
    announce(result);
  }
}

void LadderClimb::measure_or_fail(size_t rung) {
  RungResult& result = result_of(rung);
  now_ = rung;
  result.note.clear();
  try {
    measure_rung(rung);
  } catch (const LadderStopped&) {
    throw;
  } catch (const std::exception& error) {  // the run diverged or ran out of memory, or the caller's code threw
    result.verdict = Verdict::failed;
    result.note = user_message(error);
    return;
  }
  result.measured_speed = measured_effect(result.speedup);
  result.measured_memory = measured_effect(result.memory_ratio);
  if (!result.kept()) return;
  keep(rung);
  kept_rung_ = rung;
  over_start_ = result.samples_per_s_over_start;
}

void LadderClimb::fill_from_windows(const TimedWindows& windows, double samples, RungResult& result) const {
  result.speedup = paired_ratio(windows.seconds_per_sample[1], windows.seconds_per_sample[0]);
  result.samples_per_s_over_start = chain(over_start_, result.speedup);
  fill_rate(result, chain(level_, result.samples_per_s_over_start), samples);
}

void LadderClimb::show(const MeasureProgress& progress) {
  if (!on_event_) return;
  RungResult so_far = result_of(now_);
  const TimedWindows* windows = progress.windows;
  if (windows && windows->seconds_per_sample.size() > 1 && windows->seconds_per_sample[0].size() >= 2) {
    fill_from_windows(*windows, step_samples_, so_far);
  }
  LadderEvent event{.rung = &so_far, .activity = progress.activity, .done = progress.done, .total = progress.total};
  if (progress.run) {
    event.run_seconds = progress.run->seconds;
    event.run_accuracy = progress.run->accuracy;
  }
  on_event_(event);
}

void LadderClimb::announce(const RungResult& result) {
  if (on_event_) on_event_({.rung = &result, .activity = "done", .finished = true});
}

}  // namespace bellows::train
