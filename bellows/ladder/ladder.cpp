#include "bellows/ladder/ladder.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/ladder/results.h"
#include "bellows/train/recipe/recipe.h"
#include "bellows/train/resolved_job.h"

namespace bellows::train {

namespace {

constexpr double given_up = 2.5;  // a run ends after this multiple of plain's time to target

void check_ladder_options(const LadderOptions& options) {
  TORCH_CHECK_VALUE(options.target_accuracy > 0 && options.target_accuracy <= 1,
                    "run_ladder: expected target_accuracy in (0, 1], got ", options.target_accuracy,
                    ". Write 97 % as 0.97.");
  TORCH_CHECK_VALUE(options.pairs >= 5, "run_ladder: expected at least 5 pairs of windows, got ", options.pairs, ".");
  TORCH_CHECK_VALUE(options.max_pairs >= options.pairs, "run_ladder: expected max_pairs to be at least pairs (",
                    options.pairs, "), got ", options.max_pairs, ".");
  TORCH_CHECK_VALUE(options.window_s > 0, "run_ladder: expected window_s above 0, got ", options.window_s, ".");
  TORCH_CHECK_VALUE(options.seeds >= 1, "run_ladder: expected at least 1 seed, got ", options.seeds, ".");
  TORCH_CHECK_VALUE(options.max_epochs >= 1, "run_ladder: expected max_epochs of at least 1, got ", options.max_epochs,
                    ".");
  TORCH_CHECK_VALUE(options.eval_every_steps >= 0, "run_ladder: expected eval_every_steps of at least 0, got ",
                    options.eval_every_steps, ".");
}

/// The state of a ladder: the last kept rung, and the last one with plain's batch size and learning rate.
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
                               .note = "the ladder ended before it measured this technique",
                               .expectation = technique.expected.words,
                               .is_about_loading = technique.is_about_loading,
                               .judged_by_target = technique.judged_by_target,
                               .expected_speed = expected_effect(technique.expected.time_factor),
                               .expected_memory = expected_effect(technique.expected.memory_factor)});
    }
    runs_.resize(techniques.size() + 1);
    try {
      measure_plain();
      for (size_t i = 0; i < techniques.size(); ++i) {
        if (measure_.seconds() - start > options_.max_seconds) {
          report_.rungs[i].note = c10::str("the time limit of ", format_seconds(options_.max_seconds), " was reached");
          continue;
        }
        measure_rung(techniques[i], i + 1);
        announce(report_.rungs[i]);
      }
      compare_with_plain();
    } catch (const LadderStopped&) {
      report_.interrupted = true;
    } catch (const std::exception& error) {
      if (runs_[0].empty()) throw;  // without plain there is nothing to report
      report_.failure = user_message(error);
    }
    if (!runs_[0].empty()) fill_over_start(report_, runs_[0]);
    report_.recipe_yaml = (kept_ ? *kept_ : base_).to_yaml();
    report_.seconds = measure_.seconds() - start;
    return std::move(report_);
  }

 private:
  // ---- runs and progress

  LadderMeasure::Start starter(const std::optional<Recipe>& recipe) {
    if (!recipe) return [this](uint64_t seed) { return jobs_.plain(seed); };
    return [this, recipe](uint64_t seed) { return jobs_.with(*recipe, seed); };
  }

  RungResult& result_of(size_t rung) { return rung == 0 ? report_.plain : report_.rungs[rung - 1]; }

  TargetRun to_target(const std::optional<Recipe>& recipe, int seed, int seeds, const char* what) {
    const std::string which = seeds > 1 ? c10::str(what, ", seed ", seed + 1) : what;
    TargetLimits limits;
    if (recipe && options_.goal == LadderGoal::speed) limits.seconds = given_up * report_.plain.time_to_target_s;
    if (recipe && recipe->lr_schedule == "one_cycle") limits.epochs = recipe->epochs;  // the schedule ends there
    return measure_.to_target(starter(recipe), options_.seed + static_cast<uint64_t>(seed), which, seeds == 1, limits);
  }

  /// Adds runs to a rung. A run replaces an earlier one with the same seed, whose time is recorded.
  void add_runs(size_t rung, std::vector<TargetRun> runs) {
    for (TargetRun& run : runs) {
      const auto old = std::ranges::find(runs_[rung], run.seed, &TargetRun::seed);
      if (old == runs_[rung].end()) {
        runs_[rung].push_back(std::move(run));
        continue;
      }
      run.earlier_s = std::move(old->earlier_s);
      run.earlier_s.push_back(old->seconds);
      *old = std::move(run);
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
    plain.batch_size = base_.batch_size;
    plain.learning_rate = base_.lr;
    const TargetRun run = to_target(std::nullopt, 0, 1, "target");
    TORCH_CHECK_VALUE(run.reached, "run_ladder: the plain program did not reach an accuracy of ",
                      options_.target_accuracy, " within ", options_.max_epochs, " epochs. Its final accuracy is ",
                      run.accuracy, ". Lower `target_accuracy` or raise `max_epochs`.");
    add_runs(0, {run});
    level_ = rate_of(runs_[0]);
    fill_rate(plain, level_, mean_step_samples(runs_[0]));
    announce(plain);
  }

  void measure_rung(const Technique& technique, size_t rung) {
    RungResult& result = result_of(rung);
    Recipe recipe = kept_ ? *kept_ : base_;
    const std::string obstacle = technique.obstacle ? technique.obstacle(recipe, report_.machine) : "";
    if (!obstacle.empty()) {
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
    } catch (const LadderStopped&) {
      throw;
    } catch (const std::exception& error) {  // the run diverged or ran out of memory, or the caller's code threw
      result.verdict = Verdict::failed;
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
    over_start_ = result_of(rung).samples_per_s_over_start;
    first_peak_ = 0;
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
      judge_by_target(result, runs);
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
      judge_by_rate(result, runs);
    }
    fill_memory(rung);
    if (options_.goal == LadderGoal::memory) judge_by_memory(result);
  }

  /// Returns the previous configuration's run with this seed, or runs it if there is none that was fully evaluated.
  TargetRun below_run(int seed) {
    for (const TargetRun& run : runs_[kept_rung_]) {
      if (run.seed == options_.seed + static_cast<uint64_t>(seed) && !run.rough) return run;
    }
    TargetRun run = to_target(kept_, seed, options_.seeds, "previous");
    add_runs(kept_rung_, {run});
    return run;
  }

  /// Runs seed by seed, and uses twice as many seeds if the interval is wide. Only the width of the interval decides:
  /// stopping when 1 is outside would favor chance results.
  /// Params: must_win – the rung must be faster to be kept: stop at the second seed for which it is not
  PairedRuns paired_runs(const Recipe& recipe, bool must_win) {
    constexpr double wide = 1.4;  // ratio of the ends of the interval
    PairedRuns runs;
    int lost = 0;
    for (int i = 0; i < 2 * options_.seeds; ++i) {
      if (i == options_.seeds) {
        const RatioInterval ratio = target_ratio(runs.below, runs.rung);
        if (!must_win || i == 1 || ratio.high / ratio.low < wide) break;
      }
      runs.below.push_back(below_run(i));
      runs.rung.push_back(to_target(recipe, i, options_.seeds, "target"));
      lost += runs.rung.back().seconds >= runs.below.back().seconds ? 1 : 0;
      if (!runs.rung.back().reached || (must_win && lost == 2)) break;
    }
    return runs;
  }

  static double step_samples_of(const LadderJob& job) {
    return static_cast<double>(job.samples_per_epoch()) / static_cast<double>(job.steps_per_epoch());
  }

  static int64_t peak_of_first_steps(LadderJob& job) {
    job.take_peak_bytes();  // discards the peak of earlier jobs
    job.run_steps(3);
    return job.take_peak_bytes();
  }

  void time_windows(const Recipe& recipe, RungResult& result) {
    const auto rung = jobs_.with(recipe, options_.seed);
    step_samples_ = step_samples_of(*rung);
    result.peak_bytes = peak_of_first_steps(*rung);  // before the other job adds its own
    const auto below = starter(kept_)(options_.seed);
    fill_from_windows(measure_.windows({rung.get(), below.get()}), result);
    result.bottleneck = rung->bottleneck();
  }

  void fill_from_windows(const TimedWindows& windows, RungResult& result) const {
    result.speedup = paired_ratio(windows.seconds_per_sample[1], windows.seconds_per_sample[0]);
    result.samples_per_s_over_start = chain(over_start_, result.speedup);
    fill_rate(result, chain(level_, result.samples_per_s_over_start), step_samples_);
  }

  void fill_by_target(const PairedRuns& runs, RungResult& result) const {
    result.speedup = target_ratio(runs.below, runs.rung);
    result.samples_per_s_over_start = chain(over_start_, rate_ratio(runs.below, runs.rung));
    fill_rate(result, chain(level_, result.samples_per_s_over_start), mean_step_samples(runs.rung));
  }

  /// Compares complete runs with complete runs, and first steps with first steps.
  void fill_memory(size_t rung) {
    RungResult& result = result_of(rung);
    const auto peak = static_cast<double>(result.peak_bytes);
    if (peak == 0) return;
    if (runs_[rung].empty()) {
      if (first_peak_ == 0) first_peak_ = peak_of_first_steps(*starter(kept_)(options_.seed));
      result.memory_ratio = static_cast<double>(first_peak_) / peak;
    } else {
      result.memory_ratio = static_cast<double>(result_of(kept_rung_).peak_bytes) / peak;
      result.memory_over_start = static_cast<double>(report_.plain.peak_bytes) / peak;
    }
  }

  // ---- the total

  /// Compares plain and the last kept rung in time to target and in samples per second.
  void compare_with_plain() {
    if (!kept_) return;
    now_ = kept_rung_;
    std::vector<TargetRun> plain, all;
    for (int i = 0; i < options_.seeds; ++i) {
      plain.push_back(to_target(std::nullopt, i, options_.seeds, "plain"));
      all.push_back(to_target(kept_, i, options_.seeds, "all"));
    }
    add_runs(0, plain);
    add_runs(kept_rung_, all);
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
  std::vector<std::vector<TargetRun>> runs_;  ///< of plain and of each rung
  size_t now_ = 0;                            ///< the rung in progress; 0: plain
  std::optional<Recipe> kept_, equal_batch_;
  size_t kept_rung_ = 0;  ///< the rung of `kept_`; 0: plain
  RatioInterval level_;   ///< samples per second of plain's first run
  /// Samples per second of the previous configuration relative to plain.
  RatioInterval over_start_{.ratio = 1, .low = 1, .high = 1};
  int64_t first_peak_ = 0;   ///< of the first steps of the previous configuration; 0: not measured
  double step_samples_ = 0;  ///< samples of the mean step in the windows
  bool equal_batch_so_far_ = true;
};

}  // namespace

const RungResult& LadderReport::top() const {
  const auto last = std::find_if(rungs.rbegin(), rungs.rend(), [](const RungResult& rung) { return rung.kept(); });
  return last == rungs.rend() ? plain : *last;
}

std::vector<Technique> techniques_for(const Registry<Technique>& registry, LadderGoal goal) {
  std::vector<Technique> result;
  for (const Technique& row : registry.rows()) {
    const bool costs_time = expected_effect(row.expected.time_factor) == Effect::costs;
    if (goal == LadderGoal::memory ? row.saves_memory : !(row.saves_memory && costs_time)) result.push_back(row);
  }
  return result;
}

LadderReport run_ladder(const Recipe& recipe, const std::vector<Technique>& techniques, LadderJobs& jobs,
                        const LadderOptions& options, const LadderInstruments& instruments,
                        const std::function<void(const LadderEvent&)>& on_event) {
  check_ladder_options(options);
  return Climb(with_model_defaults(recipe), jobs, options, instruments, on_event).run(techniques);
}

}  // namespace bellows::train
