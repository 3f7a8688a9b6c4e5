#include "bellows/train/ladder.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/train/ladder_results.h"
#include "bellows/train/recipe.h"

namespace bellows::train {

namespace {

constexpr double given_up = 2.5;  // times what plain took to the target
constexpr double saving = 1.01;   // of the peak, before memory counts as saved
constexpr double one_seed = 1.1;  // a single pair of runs has to differ by this much

void check_ladder_options(const LadderOptions& options) {
  TORCH_CHECK_VALUE(options.target_accuracy > 0 && options.target_accuracy <= 1,
                    "run_ladder: expected target_accuracy in (0, 1], got ", options.target_accuracy, ". 97 % is 0.97.");
  TORCH_CHECK_VALUE(options.pairs >= 5, "run_ladder: expected at least 5 pairs of windows, got ", options.pairs, ".");
  TORCH_CHECK_VALUE(options.max_pairs >= options.pairs, "run_ladder: expected max_pairs of at least pairs, ",
                    options.pairs, ", got ", options.max_pairs, ".");
  TORCH_CHECK_VALUE(options.window_s > 0, "run_ladder: expected window_s above 0, got ", options.window_s, ".");
  TORCH_CHECK_VALUE(options.seeds >= 1, "run_ladder: expected at least 1 seed, got ", options.seeds, ".");
  TORCH_CHECK_VALUE(options.max_epochs >= 1, "run_ladder: expected max_epochs of at least 1, got ", options.max_epochs,
                    ".");
  TORCH_CHECK_VALUE(options.eval_every_steps >= 0, "run_ladder: expected eval_every_steps of at least 0, got ",
                    options.eval_every_steps, ".");
}

/// Runs of two recipes, pair by pair with the same seed.
struct PairedRuns {
  std::vector<TargetRun> below, rung;
};

/// The state of one climb: the last rung that was kept, and the last one with plain's batch.
class Climb {
 public:
  Climb(const Recipe& recipe, LadderJobs& jobs, const LadderOptions& options, const LadderInstruments& instruments,
        std::function<void(const LadderEvent&)> on_event)
      : base_(recipe),
        jobs_(jobs),
        options_(options),
        on_event_(std::move(on_event)),
        measure_(options_, instruments, recipe.batch_size,
                 [this](const MeasureProgress& progress) { show(progress); }) {
    report_.machine = this_machine();
    report_.model = recipe.model;
    report_.data = recipe.data;
    report_.options = options;
  }

  LadderReport run(const std::vector<Technique>& techniques) {
    const double start = measure_.seconds();
    report_.plain = {.technique = "plain", .title = "plain libtorch"};
    for (const Technique& technique : techniques) {
      report_.rungs.push_back({.technique = technique.name,
                               .title = technique.title,
                               .note = "the ladder ended before it",
                               .expectation = technique.expected.words,
                               .judged_by_target = technique.judged_by_target,
                               .expected_speed = expected_effect(technique.expected.time_factor),
                               .expected_memory = expected_effect(technique.expected.memory_factor)});
    }
    runs_.resize(techniques.size() + 1);
    try {
      measure_plain();
      for (size_t i = 0; i < techniques.size(); ++i) {
        RungResult& result = report_.rungs[i];
        if (measure_.seconds() - start > options_.max_seconds) {
          result.note = c10::str("the time limit of ", format_seconds(options_.max_seconds), " was reached");
        } else {
          measure_rung(techniques[i], i + 1);
        }
        announce(result);
      }
      compare_with_plain();
    } catch (const LadderStopped&) {
      report_.interrupted = true;
    }
    report_.recipe_yaml = (kept_ ? *kept_ : base_).to_yaml();
    report_.seconds = measure_.seconds() - start;
    return std::move(report_);
  }

 private:
  // ---- what is running

  LadderMeasure::Start starter(const std::optional<Recipe>& recipe) {
    if (!recipe) return [this](uint64_t seed) { return jobs_.plain(seed); };
    return [this, recipe](uint64_t seed) { return jobs_.with(*recipe, seed); };
  }

  RungResult& result_of(size_t rung) { return rung == 0 ? report_.plain : report_.rungs[rung - 1]; }

  TargetRun to_target(const std::optional<Recipe>& recipe, int seed, int seeds, const char* what) {
    const std::string which = seeds > 1 ? c10::str(what, " ", seed + 1, "/", seeds) : what;
    TargetLimits limits;
    if (recipe) limits.seconds = report_.plain.time_to_target_s * given_up;
    if (recipe && recipe->schedule == "one_cycle") limits.epochs = recipe->epochs;  // nothing is learnt behind its end
    return measure_.to_target(starter(recipe), options_.seed + static_cast<uint64_t>(seed), which, seeds == 1, limits);
  }

  /// Takes note of runs of a rung; a seed that ran before is replaced.
  void add_runs(size_t rung, const std::vector<TargetRun>& runs) {
    for (const TargetRun& run : runs) {
      std::erase_if(runs_[rung], [&](const TargetRun& old) { return old.seed == run.seed; });
      runs_[rung].push_back(run);
    }
    fill_target(result_of(rung), runs_[rung]);
  }

  void show(const MeasureProgress& progress) {
    if (!on_event_) return;
    RungResult so_far = result_of(now_);
    if (const TimedWindows* windows = progress.windows; windows && windows->seconds_per_sample[0].size() >= 2) {
      fill_from_windows(*windows, so_far);
    }
    LadderEvent event{.rung = &so_far, .activity = progress.activity, .done = progress.done, .total = progress.total};
    if (progress.run) {
      event.run_seconds = progress.run->seconds;
      event.run_accuracy = progress.run->accuracy;
    }
    on_event_(event);
  }

  void announce(const RungResult& result) {
    if (on_event_) on_event_({.rung = &result, .activity = "done", .finished = true});
  }

  // ---- rungs

  void measure_plain() {
    RungResult& plain = report_.plain;
    plain.verdict = Verdict::kept;
    plain.note = "rung 0";
    plain.batch_size = base_.batch_size;
    plain.learning_rate = base_.lr;
    {
      const auto job = jobs_.plain(options_.seed);
      step_samples_ = step_samples_of(*job);
      fill_from_windows(measure_.windows({job.get()}), plain);
    }
    rate_ = {.ratio = plain.samples_per_s,
             .low = plain.samples_per_s_interval.low,
             .high = plain.samples_per_s_interval.high};
    const TargetRun run = to_target(std::nullopt, 0, 1, "target");
    TORCH_CHECK_VALUE(run.reached, "run_ladder: the plain program did not reach an accuracy of ",
                      options_.target_accuracy, " within ", options_.max_epochs, " epochs; it ended at ", run.accuracy,
                      ". Ask for less, or allow more epochs.");
    add_runs(0, {run});
    announce(plain);
  }

  void measure_rung(const Technique& technique, size_t rung) {
    RungResult& result = result_of(rung);
    Recipe recipe = kept_ ? *kept_ : base_;
    if (const std::string obstacle = technique.obstacle(recipe, report_.machine); !obstacle.empty()) {
      result.verdict = Verdict::does_not_apply;
      result.note = obstacle;
      return;
    }
    technique.apply(recipe);
    now_ = rung;
    result.batch_size = recipe.batch_size;
    result.learning_rate = recipe.lr;
    result.note.clear();
    try {
      measure_and_judge(technique, recipe, rung);
    } catch (const c10::Error& error) {  // a run that blew up, or does not fit into memory
      result.verdict = Verdict::misses_target;
      result.note = user_message(error);
      return;
    }
    result.measured_speed = measured_effect(result.speedup);
    result.measured_memory = measured_effect(result.memory_ratio);
    if (result.kept()) keep(technique, recipe, rung);
  }

  void keep(const Technique& technique, const Recipe& recipe, size_t rung) {
    kept_ = recipe;
    kept_rung_ = rung;
    rate_ = {.ratio = result_of(rung).samples_per_s,
             .low = result_of(rung).samples_per_s_interval.low,
             .high = result_of(rung).samples_per_s_interval.high};
    over_start_ = result_of(rung).speedup_over_start;
    equal_batch_so_far_ &= technique.equal_batch && !technique.judged_by_target;
    if (equal_batch_so_far_) equal_batch_ = recipe;
  }

  void measure_and_judge(const Technique& technique, const Recipe& recipe, size_t rung) {
    RungResult& result = result_of(rung);
    const bool by_target = technique.judged_by_target && options_.goal == LadderGoal::speed;
    result.judged_by_target = by_target;
    if (by_target) {
      const PairedRuns runs = paired_runs(recipe, true);
      add_runs(rung, runs.rung);
      fill_by_target(runs, result);
      judge_by_target(runs, result);
    } else {
      time_windows(recipe, result);
      const bool lossy = technique.exactness == Exactness::lossy;
      const bool paired = lossy && result.speedup.low > 1 && options_.goal == LadderGoal::speed;
      PairedRuns runs;
      if (paired) {
        runs = paired_runs(recipe, false);
      } else if (result.speedup.low > 1 || options_.goal == LadderGoal::memory) {
        runs.rung.push_back(to_target(recipe, 0, 1, "target"));
      }
      if (!runs.rung.empty()) add_runs(rung, runs.rung);
      judge(runs, result);
    }
    fill_memory(result);
    if (options_.goal == LadderGoal::memory) judge_memory(result);
  }

  /// Params: must_win – the rung has to be sooner with every seed: stop at the first that it is not. (With five seeds
  ///         or fewer no interval lies above 1 once one pair says otherwise.)
  PairedRuns paired_runs(const Recipe& recipe, bool must_win) {
    PairedRuns runs;
    for (int i = 0; i < options_.seeds; ++i) {
      runs.below.push_back(to_target(kept_, i, options_.seeds, "below"));
      runs.rung.push_back(to_target(recipe, i, options_.seeds, "target"));
      const bool lost = !runs.rung.back().reached || runs.rung.back().seconds >= runs.below.back().seconds;
      if (!runs.rung.back().reached || (must_win && lost && options_.seeds <= 5)) break;
    }
    add_runs(kept_rung_, runs.below);
    return runs;
  }

  static double step_samples_of(const LadderJob& job) {
    return static_cast<double>(job.samples_per_epoch()) / static_cast<double>(job.steps_per_epoch());
  }

  void time_windows(const Recipe& recipe, RungResult& result) {
    const auto rung = jobs_.with(recipe, options_.seed);
    step_samples_ = step_samples_of(*rung);
    rung->take_peak_bytes();  // of jobs that were
    rung->run_steps(3);
    result.peak_bytes = rung->take_peak_bytes();  // before the other job may add its own
    const auto below = starter(kept_)(options_.seed);
    fill_from_windows(measure_.windows({rung.get(), below.get()}), result);
  }

  void fill_from_windows(const TimedWindows& windows, RungResult& result) const {
    const auto& series = windows.seconds_per_sample;
    if (series.size() == 1) {
      fill_rate(result, level_of(inverted(series[0])), step_samples_);
      return;
    }
    result.speedup = paired_ratio(series[1], series[0]);
    result.speedup_over_start = chain(over_start_, result.speedup);
    fill_rate(result, chain(rate_, result.speedup), step_samples_);
  }

  static std::vector<double> inverted(std::vector<double> values) {
    for (double& value : values) value = 1 / value;
    return values;
  }

  void fill_by_target(const PairedRuns& runs, RungResult& result) const {
    result.speedup = target_ratio(runs.below, runs.rung);
    result.speedup_over_start = chain(over_start_, result.speedup);
    double steps = 0, samples = 0;
    for (const TargetRun& run : runs.rung) {
      steps += static_cast<double>(run.steps);
      samples += static_cast<double>(run.samples);
    }
    fill_rate(result, chain(rate_, rate_ratio(runs.below, runs.rung)), samples / steps);
  }

  void fill_memory(RungResult& result) {
    const auto peak = static_cast<double>(result.peak_bytes);
    if (peak == 0) return;
    result.memory_ratio = static_cast<double>(result_of(kept_rung_).peak_bytes) / peak;
    result.memory_over_start = static_cast<double>(report_.plain.peak_bytes) / peak;
  }

  // ---- verdicts

  std::string missed(const TargetRun& run) const {
    return c10::str("ended at ", run.accuracy, " after ", format_seconds(run.seconds), " of training");
  }

  void judge(const PairedRuns& runs, RungResult& result) const {
    const RatioInterval& speedup = result.speedup;
    if (!all_reached(runs.rung)) {
      result.verdict = Verdict::misses_target;
      result.note = missed(runs.rung.back());
    } else if (!speedup.excludes_one()) {
      result.verdict = Verdict::no_effect;
      result.note = "the 90 % interval of the ratio contains 1";
    } else if (speedup.high < 1) {
      result.verdict = Verdict::slower;
      result.note = "the 90 % interval of the ratio lies below 1";
    } else if (!runs.below.empty() && median_seconds(runs.rung) >= median_seconds(runs.below)) {
      result.verdict = Verdict::later_at_target;
      result.note = c10::str("more samples a second, but the target took ", format_seconds(median_seconds(runs.rung)),
                             " instead of ", format_seconds(median_seconds(runs.below)));
    } else {
      result.verdict = Verdict::kept;
    }
  }

  void judge_by_target(const PairedRuns& runs, RungResult& result) const {
    const RatioInterval& speedup = result.speedup;
    const bool single = options_.seeds == 1;
    if (!all_reached(runs.rung)) {
      result.verdict = Verdict::misses_target;
      result.note = missed(runs.rung.back());
    } else if (single ? speedup.ratio > one_seed : speedup.low > 1) {
      result.verdict = Verdict::kept;
    } else if (median_seconds(runs.rung) >= median_seconds(runs.below)) {
      result.verdict = Verdict::later_at_target;
      result.note = c10::str("the target took ", format_seconds(median_seconds(runs.rung)), " instead of ",
                             format_seconds(median_seconds(runs.below)));
    } else {
      result.verdict = Verdict::no_effect;
      result.note = "the target came sooner, but not with every seed by so much that it could not be chance";
    }
  }

  void judge_memory(RungResult& result) const {
    if (result.verdict == Verdict::misses_target) return;
    result.note.clear();
    if (result.memory_ratio > saving) {
      result.verdict = Verdict::kept;
    } else if (result.memory_ratio < 1 / saving) {
      result.verdict = Verdict::more_memory;
      result.note = "the peak is higher than that of the rung below";
    } else {
      result.verdict = Verdict::no_effect;
      result.note = "the peak changed by less than 1 %";
    }
  }

  // ---- the total

  /// Plain and the last kept rung side by side, in time to target and in samples per second.
  void compare_with_plain() {
    now_ = kept_rung_;
    std::vector<TargetRun> plain, all;
    for (int i = 0; i < options_.seeds; ++i) {
      plain.push_back(to_target(std::nullopt, i, options_.seeds, "plain"));
      if (kept_) all.push_back(to_target(kept_, i, options_.seeds, "all"));
    }
    add_runs(0, plain);
    if (!kept_) return;
    add_runs(kept_rung_, all);
    report_.speedup.ratio = report_.speedup.low = report_.speedup.high = RungResult::unknown;
    if (all_reached(plain) && all_reached(all)) report_.speedup = target_ratio(plain, all);
    if (!equal_batch_) return;
    const auto equal = jobs_.with(*equal_batch_, options_.seed);
    const auto rung0 = jobs_.plain(options_.seed);
    const TimedWindows windows = measure_.windows({equal.get(), rung0.get()});
    report_.speedup_equal_batch = paired_ratio(windows.seconds_per_sample[1], windows.seconds_per_sample[0]);
  }

  const Recipe base_;
  LadderJobs& jobs_;
  const LadderOptions options_;
  std::function<void(const LadderEvent&)> on_event_;
  LadderMeasure measure_;
  LadderReport report_;
  std::vector<std::vector<TargetRun>> runs_;  ///< of plain, and of each rung
  size_t now_ = 0;                            ///< the rung that is being measured, 0: plain
  std::optional<Recipe> kept_, equal_batch_;
  size_t kept_rung_ = 0;      ///< the rung of `kept_`, 0: plain
  RatioInterval rate_;        ///< samples per second of the rung below: plain's times the ratios of all that were kept
  RatioInterval over_start_;  ///< speed-up of the rung below over plain, the same way
  double step_samples_ = 0;   ///< of the mean step of what is in the windows
  bool equal_batch_so_far_ = true;
};

}  // namespace

LadderReport run_ladder(const Recipe& recipe, const std::vector<Technique>& techniques, LadderJobs& jobs,
                        const LadderOptions& options, const LadderInstruments& instruments,
                        const std::function<void(const LadderEvent&)>& on_event) {
  check_ladder_options(options);
  return Climb(recipe, jobs, options, instruments, on_event).run(techniques);
}

}  // namespace bellows::train
