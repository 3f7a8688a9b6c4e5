#include "bellows/train/ladder.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "bellows/train/ladder_measure.h"
#include "bellows/train/recipe.h"

namespace bellows::train {

namespace {

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
}

template <class Value>
double median_over(const std::vector<TargetRun>& runs, Value value) {
  std::vector<double> values;
  for (const TargetRun& run : runs) values.push_back(static_cast<double>(value(run)));
  return median(std::move(values));
}

double median_seconds(const std::vector<TargetRun>& runs) {
  return median_over(runs, [](const TargetRun& run) { return run.seconds; });
}

bool all_reached(const std::vector<TargetRun>& runs) {
  return std::all_of(runs.begin(), runs.end(), [](const TargetRun& run) { return run.reached; });
}

/// Ratio of paired values with its interval; one pair has none (NaN).
RatioInterval ratio_of(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() >= 2) return paired_ratio(a, b);
  constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  return {.ratio = a.at(0) / b.at(0), .low = unknown, .high = unknown};
}

std::vector<double> seconds_of(const std::vector<TargetRun>& runs) {
  std::vector<double> values;
  for (const TargetRun& run : runs) values.push_back(run.seconds);
  return values;
}

void fill_rate(RungResult& result, double samples_per_s, const LadderJob& job) {
  result.samples_per_s = samples_per_s;
  result.step_ms =
      1e3 / samples_per_s * static_cast<double>(job.samples_per_epoch()) / static_cast<double>(job.steps_per_epoch());
}

void fill_target(RungResult& result, const std::vector<TargetRun>& runs) {
  result.accuracy = median_over(runs, [](const TargetRun& run) { return run.accuracy; });
  for (const TargetRun& run : runs) result.peak_bytes = std::max(result.peak_bytes, run.peak_bytes);
  if (!all_reached(runs)) return;
  result.time_to_target_s = median_seconds(runs);
  result.epochs = median_over(runs, [](const TargetRun& run) { return run.epochs; });
}

/// The state of one climb: the last rung that was kept, and the last one with plain's batch.
class Climb {
 public:
  Climb(const Recipe& recipe, LadderJobs& jobs, const LadderOptions& options, const LadderInstruments& instruments,
        std::function<void(const LadderEvent&)> on_event)
      : base_(recipe),
        jobs_(jobs),
        options_(options),
        on_event_(std::move(on_event)),
        measure_(options_, instruments, [this](const std::string& activity, int64_t done, int64_t total) {
          if (on_event_) on_event_({.title = title_, .activity = activity, .done = done, .total = total});
        }) {
    report_.machine = this_machine();
    report_.model = recipe.model;
    report_.data = recipe.data;
    report_.options = options;
  }

  LadderReport run(const std::vector<Technique>& techniques) {
    const double start = measure_.seconds();
    for (const Technique& technique : techniques) {
      report_.rungs.push_back(
          {.technique = technique.name, .title = technique.title, .note = "the ladder ended before it"});
    }
    try {
      measure_plain();
      for (size_t i = 0; i < techniques.size(); ++i) {
        RungResult& result = report_.rungs[i];
        if (measure_.seconds() - start > options_.max_seconds) {
          result.note = c10::str("the time limit of ", format_seconds(options_.max_seconds), " was reached");
        } else {
          measure_rung(techniques[i], result);
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
  LadderMeasure::Start starter(const std::optional<Recipe>& recipe) {
    if (!recipe) return [this](uint64_t seed) { return jobs_.plain(seed); };
    return [this, recipe](uint64_t seed) { return jobs_.with(*recipe, seed); };
  }

  /// Params: below – where given, the rung below runs beside it, seed by seed, and its runs are put there
  std::vector<TargetRun> target_runs(const std::optional<Recipe>& recipe, int seeds,
                                     std::vector<TargetRun>* below = nullptr) {
    std::vector<TargetRun> runs;
    for (int i = 0; i < seeds && all_reached(runs); ++i) {
      const std::string which = seeds > 1 ? c10::str(", seed ", i + 1, " of ", seeds) : "";
      runs.push_back(measure_.to_target(starter(recipe), options_.seed + i, "to the target" + which));
      if (below) below->push_back(measure_.to_target(starter(kept_), options_.seed + i, "the rung below" + which));
    }
    return runs;
  }

  void announce(const RungResult& result) {
    if (on_event_) on_event_({.title = result.title, .activity = "done", .finished = &result});
  }

  void measure_plain() {
    RungResult& plain = report_.plain;
    plain = {.technique = "plain", .title = "plain libtorch", .verdict = Verdict::kept, .note = "rung 0"};
    plain.batch_size = base_.batch_size;
    plain.learning_rate = base_.lr;
    title_ = plain.title;
    const std::vector<TargetRun> runs = target_runs(std::nullopt, options_.seeds);
    TORCH_CHECK_VALUE(all_reached(runs), "run_ladder: the plain program did not reach an accuracy of ",
                      options_.target_accuracy, " within ", options_.max_epochs, " epochs; it ended at ",
                      runs.back().accuracy, ". Ask for less, or allow more epochs.");
    fill_target(plain, runs);
    const auto job = jobs_.plain(options_.seed);
    fill_rate(plain, 1 / measure_.windows({job.get()}).median_of(0), *job);
    kept_samples_per_s_ = plain.samples_per_s;
    announce(plain);
  }

  void measure_rung(const Technique& technique, RungResult& result) {
    Recipe recipe = kept_ ? *kept_ : base_;
    if (const std::string obstacle = technique.obstacle(recipe, report_.machine); !obstacle.empty()) {
      result.verdict = Verdict::does_not_apply;
      result.note = obstacle;
      return;
    }
    technique.apply(recipe);
    title_ = technique.title;
    result.batch_size = recipe.batch_size;
    result.learning_rate = recipe.lr;
    time_windows(recipe, result);
    const bool faster = result.speedup.low > 1, lossy = technique.exactness == Exactness::lossy;
    std::vector<TargetRun> below;
    const std::vector<TargetRun> runs =
        target_runs(recipe, faster ? options_.seeds : 1, faster && lossy ? &below : nullptr);
    fill_target(result, runs);
    judge(runs, below, result);
    if (!result.kept()) return;
    kept_ = recipe;
    kept_samples_per_s_ = result.samples_per_s;
    if (technique.equal_batch && equal_batch_so_far_) {
      equal_batch_ = recipe;
    } else {
      equal_batch_so_far_ = false;
    }
  }

  void time_windows(const Recipe& recipe, RungResult& result) {
    const auto rung = jobs_.with(recipe, options_.seed);
    const auto below = starter(kept_)(options_.seed);
    const TimedWindows windows = measure_.windows({rung.get(), below.get()});
    result.speedup = paired_ratio(windows.seconds_per_sample[1], windows.seconds_per_sample[0]);
    fill_rate(result, kept_samples_per_s_ * result.speedup.ratio, *rung);
  }

  /// Params: below – runs of the rung below, for a lossy technique; else empty
  void judge(const std::vector<TargetRun>& runs, const std::vector<TargetRun>& below, RungResult& result) const {
    const RatioInterval& speedup = result.speedup;
    if (!speedup.excludes_one()) {
      result.verdict = Verdict::no_effect;
      result.note = "the 90 % interval of the ratio contains 1";
    } else if (speedup.high < 1) {
      result.verdict = Verdict::slower;
      result.note = "the 90 % interval of the ratio lies below 1";
    } else if (!all_reached(runs)) {
      result.verdict = Verdict::misses_target;
      result.note = c10::str("ended at ", runs.back().accuracy, " after ", options_.max_epochs, " epochs");
    } else if (!below.empty() && median_seconds(runs) >= median_seconds(below)) {
      result.verdict = Verdict::later_at_target;
      result.note = c10::str("more samples a second, but the target took ", format_seconds(median_seconds(runs)),
                             " instead of ", format_seconds(median_seconds(below)));
    } else {
      result.verdict = Verdict::kept;
    }
  }

  /// The two figures at the foot: plain and the last kept rung side by side, in time to target and in samples per
  /// second.
  void compare_with_plain() {
    if (!kept_) return;
    title_ = "plain against all";
    std::vector<TargetRun> plain, all;
    const int seeds = options_.seeds > 1 ? 2 * options_.seeds : 1;  // the figure that is quoted
    for (int i = 0; i < seeds; ++i) {
      const std::string which = c10::str("seed ", i + 1, " of ", seeds);
      plain.push_back(measure_.to_target(starter(std::nullopt), options_.seed + i, "plain to the target, " + which));
      all.push_back(measure_.to_target(starter(kept_), options_.seed + i, "all to the target, " + which));
    }
    report_.speedup = ratio_of(seconds_of(plain), seconds_of(all));
    if (!equal_batch_) return;
    title_ = "at equal batch";
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
  std::string title_;
  std::optional<Recipe> kept_, equal_batch_;
  double kept_samples_per_s_ = 0;  ///< of the rung below; plain's times the ratios of all that were kept
  bool equal_batch_so_far_ = true;
};

}  // namespace

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kept:
      return "kept";
    case Verdict::no_effect:
      return "no effect";
    case Verdict::slower:
      return "slower";
    case Verdict::misses_target:
      return "misses the target";
    case Verdict::later_at_target:
      return "later at target";
    case Verdict::does_not_apply:
      return "does not apply";
    case Verdict::not_measured:
      return "not measured";
  }
  return "";
}

LadderReport run_ladder(const Recipe& recipe, const std::vector<Technique>& techniques, LadderJobs& jobs,
                        const LadderOptions& options, const LadderInstruments& instruments,
                        const std::function<void(const LadderEvent&)>& on_event) {
  check_ladder_options(options);
  return Climb(recipe, jobs, options, instruments, on_event).run(techniques);
}

}  // namespace bellows::train
