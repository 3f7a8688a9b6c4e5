#include "bellows/ladder/ladder.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/ladder/climb.h"
#include "bellows/ladder/results.h"
#include "bellows/train/recipe/recipe.h"
#include "bellows/train/resolved_job.h"

namespace bellows::train {

namespace {

constexpr double given_up = 2.5;  // a run ends after this multiple of plain's time to target

/// The ladder for training. Its state: the last kept recipe, and the last one with plain's batch size and learning rate.
class Climb final : public LadderClimb {
 public:
  Climb(const Recipe& recipe, const std::vector<Technique>& techniques, LadderJobs& jobs, const LadderOptions& options,
        const LadderInstruments& instruments, OnEvent on_event)
      : LadderClimb(options, instruments, recipe.batch_size, std::move(on_event), rungs_of(techniques)),
        base_(recipe),
        techniques_(techniques),
        jobs_(jobs),
        runs_(techniques.size() + 1) {
    report_.model = recipe.model;
    report_.data = recipe.data;
    report_.plain = {.technique = "plain", .title = "plain libtorch"};
  }

 private:
  static std::vector<RungResult> rungs_of(const std::vector<Technique>& techniques) {
    std::vector<RungResult> rungs;
    for (const Technique& technique : techniques) {
      RungResult& rung = rungs.emplace_back(rung_of(technique));
      rung.is_about_loading = technique.is_about_loading;
      rung.judged_by_target = technique.judged_by_target;
    }
    return rungs;
  }

  void finish() override {
    if (!runs_[0].empty()) fill_over_start(report_, runs_[0]);
    report_.recipe_yaml = (kept_ ? *kept_ : base_).to_yaml();
  }

  // ---- runs

  LadderMeasure::Start starter(const std::optional<Recipe>& recipe) {
    if (!recipe) return [this](uint64_t seed) { return jobs_.plain(seed); };
    return [this, recipe](uint64_t seed) { return jobs_.with(*recipe, seed); };
  }

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

  // ---- rungs

  void measure_start() override {
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
  }

  const Technique& technique_of(size_t rung) const { return techniques_[rung - 1]; }
  const Recipe& previous() const { return kept_ ? *kept_ : base_; }
  Recipe recipe_of(size_t rung) const {
    Recipe recipe = previous();
    technique_of(rung).apply(recipe);
    return recipe;
  }

  std::string obstacle(size_t rung) override {
    const Technique& technique = technique_of(rung);
    return technique.obstacle ? technique.obstacle(previous(), report_.machine) : "";
  }

  void measure_rung(size_t rung) override {
    const Recipe recipe = recipe_of(rung);
    RungResult& result = result_of(rung);
    result.batch_size = recipe.batch_size;
    result.learning_rate = recipe.lr;
    measure_and_judge(technique_of(rung), recipe, rung);
  }

  void keep(size_t rung) override {
    const Technique& technique = technique_of(rung);
    kept_ = recipe_of(rung);
    first_peak_ = 0;
    equal_batch_so_far_ &= technique.equal_batch && !technique.judged_by_target;
    if (equal_batch_so_far_) equal_batch_ = kept_;
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
    fill_from_windows(measure_.windows({rung.get(), below.get()}), step_samples_, result);
    result.bottleneck = rung->bottleneck();
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
  void measure_total() override {
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
  const std::vector<Technique>& techniques_;
  LadderJobs& jobs_;
  std::vector<std::vector<TargetRun>> runs_;  ///< of plain and of each rung
  std::optional<Recipe> kept_, equal_batch_;
  int64_t first_peak_ = 0;  ///< of the first steps of the previous configuration; 0: not measured
  bool equal_batch_so_far_ = true;
};

}  // namespace

std::string_view to_string(LadderGoal goal) {
  static constexpr std::string_view words[] = {"speed", "memory", "inference", "comparison"};
  return words[static_cast<size_t>(goal)];
}

const RungResult& LadderReport::top() const {
  if (options.goal == LadderGoal::comparison) {
    const RungResult* fastest = &plain;
    for (const RungResult& rung : rungs) {
      if (rung.kept() && (fastest == &plain || rung.speedup.ratio > fastest->speedup.ratio)) fastest = &rung;
    }
    return *fastest;
  }
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
  check_training(options);
  return Climb(with_model_defaults(recipe), techniques, jobs, options, instruments, on_event).run();
}

}  // namespace bellows::train
