#include "bellows/ladder/comparison/comparison.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "bellows/ladder/climb.h"
#include "bellows/ladder/job.h"
#include "bellows/ladder/results.h"
#include "bellows/techniques/technique.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/resolved_job.h"

namespace bellows::train {

namespace {

constexpr int64_t counted_steps = 8;  // steps whose exchange is counted

/// The settings of a run that the ladder controls: it evaluates, and nothing is saved.
Recipe controlled(Recipe recipe) {
  recipe = at_full_size(std::move(recipe));
  recipe.target_accuracy = 0;
  recipe.early_stopping_patience = 0;
  return with_model_defaults(recipe);
}

/// The recipe that the report contains. A technique may exclude a setting that the comparison clears.
Recipe reported(const Recipe& recipe) {
  try {
    recipe.validate();
    return recipe;
  } catch (const c10::Error&) {
    return controlled(recipe);
  }
}

/// Whether the two recipes increase their batches and images in the same way.
bool grow_alike(const Recipe& a, const Recipe& b) {
  return a.batch_size_start == b.batch_size_start && a.image_size_start == b.image_size_start &&
         a.growth_epochs == b.growth_epochs;
}

/// The names of the techniques are keys of the report.
void check_compared_names(const std::vector<ComparedRecipe>& others) {
  std::set<std::string> taken = {"plain"};
  for (const ComparedRecipe& other : others)
    TORCH_CHECK_VALUE(taken.insert(other.name).second, "ladder: two compared recipes have the name \"", other.name,
                      "\". Names must be unique, and \"plain\" is the name of the first recipe.");
}

class Comparison final : public LadderClimb {
 public:
  Comparison(const ComparedRecipe& start, const std::vector<ComparedRecipe>& others, int64_t threads,
             ComparisonJobs& jobs, const LadderOptions& options, const LadderInstruments& instruments, OnEvent on_event)
      : LadderClimb(options, instruments, start.recipe.batch_size, std::move(on_event), rungs_of(others)),
        threads_(threads),
        jobs_(jobs) {
    recipes_.push_back(start);
    recipes_.insert(recipes_.end(), others.begin(), others.end());
    report_.model = start.recipe.model;
    report_.data = start.recipe.data;
    report_.plain.technique = "plain";
    report_.plain.title = start.title;
    for (size_t rung = 0; rung < recipes_.size(); ++rung) {
      const ComparedRecipe& recipe = recipes_[rung];
      RungResult& result = result_of(rung);
      result.ranks = recipe.ranks;
      result.threads = threads_of(recipe);
      result.batch_size = with_total_batch(recipe.recipe, recipe.ranks).batch_size;
      result.learning_rate = recipe.recipe.lr;
    }
  }

 private:
  static std::vector<RungResult> rungs_of(const std::vector<ComparedRecipe>& others) {
    std::vector<RungResult> rungs;
    rungs.reserve(others.size());
    for (const ComparedRecipe& other : others) {
      rungs.push_back(rung_of(other));
      rungs.back().note = "the comparison ended before it measured this recipe";
    }
    return rungs;
  }

  int64_t threads_of(const ComparedRecipe& recipe) const { return std::max<int64_t>(1, threads_ / recipe.ranks); }

  LadderMeasure::Start starter(size_t rung) {
    const ComparedRecipe& recipe = recipes_[rung];
    return [this, &recipe](uint64_t seed) { return jobs_.with(recipe.recipe, seed, recipe.ranks, threads_of(recipe)); };
  }

  std::vector<TargetRun> to_target(size_t rung) {
    std::vector<TargetRun> runs;
    for (int i = 0; i < options_.seeds; ++i) {
      const std::string which = options_.seeds > 1 ? c10::str("target, seed ", i + 1) : "target";
      const uint64_t seed = options_.seed + static_cast<uint64_t>(i);
      runs.push_back(measure_.to_target(starter(rung), seed, which, options_.seeds == 1));
      if (!runs.back().reached) break;
    }
    fill_target(result_of(rung), runs);
    return runs;
  }

  void measure_start() override {
    RungResult& start = report_.plain;
    {
      const auto job = starter(0)(options_.seed);
      const TimedWindows windows = measure_.windows({job.get()});
      const std::vector<double>& seconds = windows.seconds_per_sample.front();
      level_ = ratio_of(std::vector<double>(seconds.size(), 1.0), seconds);
      fill_rate(start, level_, step_samples_of(*job));
      start.sent_bytes = sent_per_step(*job);
    }
    start_runs_ = to_target(0);
    TORCH_CHECK_VALUE(all_reached(start_runs_), "ladder: ", start.title, " did not reach an accuracy of ",
                      options_.target_accuracy, " within ", options_.max_epochs, " epochs. Its final accuracy is ",
                      start_runs_.back().accuracy, ". Lower `target_accuracy` or raise `max_epochs`.");
  }

  std::string obstacle(size_t rung) override { return recipes_[rung].obstacle; }

  void measure_rung(size_t rung) override {
    RungResult& result = result_of(rung);
    over_start_ = {.ratio = 1, .low = 1, .high = 1};  // every rung is compared with the first
    {
      const auto job = starter(rung)(options_.seed);
      step_samples_ = step_samples_of(*job);
      const auto start = starter(0)(options_.seed);
      fill_from_windows(measure_.windows({job.get(), start.get()}), step_samples_, result);
      result.sent_bytes = sent_per_step(*job);
      result.bottleneck = job->bottleneck();
    }
    PairedRuns runs{.below = {}, .rung = to_target(rung)};
    if (recipes_[rung].lossy) runs.below = start_runs_;
    judge_by_rate(result, runs);
    fill_over_start(runs.rung, result);
  }

  void fill_over_start(const std::vector<TargetRun>& runs, RungResult& result) const {
    if (all_reached(runs)) result.target_over_start = target_ratio(start_runs_, runs).ratio;
    if (result.peak_bytes == 0) return;
    result.memory_over_start = static_cast<double>(report_.plain.peak_bytes) / static_cast<double>(result.peak_bytes);
    result.memory_ratio = result.memory_over_start;
  }

  static double step_samples_of(const LadderJob& job) {
    return static_cast<double>(job.samples_per_epoch()) / static_cast<double>(job.steps_per_epoch());
  }

  /// After the windows, so that buckets and compiled code have their final form.
  static double sent_per_step(LadderJob& job) {
    const int64_t before = job.sent_bytes();
    if (before < 0) return RungResult::unknown;
    job.run_steps(counted_steps);
    return static_cast<double>(job.sent_bytes() - before) / counted_steps;
  }

  void keep(size_t) override {}
  void measure_total() override { report_.speedup = report_.top().speedup; }

  void finish() override {}

  const int64_t threads_;
  ComparisonJobs& jobs_;
  std::vector<ComparedRecipe> recipes_;  ///< the first is rung 0
  std::vector<TargetRun> start_runs_;
};

}  // namespace

std::vector<ComparedRecipe> parallel_recipes(const Recipe& recipe, int ranks,
                                             const Registry<ParallelTechnique>& techniques) {
  TORCH_CHECK_VALUE(ranks >= 2, "ladder: expected at least 2 ranks, got ", ranks, ".");
  std::vector<ComparedRecipe> recipes;
  for (const ParallelTechnique& technique : techniques.rows()) {
    ComparedRecipe compared{.name = technique.name,
                            .title = technique.title,
                            .recipe = with_model_defaults(recipe),
                            .ranks = technique.in_one_process ? 1 : ranks,
                            .lossy = technique.exactness == Exactness::lossy,
                            .obstacle = {},
                            .expected = technique.expected};
    if (technique.obstacle) compared.obstacle = technique.obstacle(controlled(recipe), ranks);
    if (compared.obstacle.empty()) technique.apply(compared.recipe, ranks);
    recipes.push_back(std::move(compared));
  }
  return recipes;
}

LadderReport compare_recipes(const ComparedRecipe& start, const std::vector<ComparedRecipe>& others, int64_t threads,
                             ComparisonJobs& jobs, const LadderOptions& options, const LadderInstruments& instruments,
                             const std::function<void(const LadderEvent&)>& on_event) {
  check_training(options);
  check_compared_names(others);
  TORCH_CHECK_VALUE(threads >= 1, "ladder: expected at least 1 thread, got ", threads, ".");
  LadderOptions compared = options;
  compared.goal = LadderGoal::comparison;
  ComparedRecipe first = start;
  first.recipe = controlled(start.recipe);
  std::vector<ComparedRecipe> rungs = others;
  for (ComparedRecipe& rung : rungs) {
    if (rung.obstacle.empty() && !grow_alike(start.recipe, rung.recipe))
      rung.obstacle =
          "it changes batch_size_start, image_size_start or growth_epochs, but all configurations train with full "
          "batches and images";
    rung.recipe = controlled(rung.recipe);
  }
  LadderReport report = Comparison(first, rungs, threads, jobs, compared, instruments, on_event).run();
  const RungResult* const top = &report.top();
  const ComparedRecipe& fastest = top == &report.plain ? start : others[static_cast<size_t>(top - report.rungs.data())];
  report.recipe_yaml = reported(fastest.recipe).to_yaml();
  return report;
}

bool has_measured_rung(const LadderReport& report) {
  return std::any_of(report.rungs.begin(), report.rungs.end(), [](const RungResult& rung) {
    return rung.verdict != Verdict::not_measured && rung.verdict != Verdict::does_not_apply &&
           rung.verdict != Verdict::failed;
  });
}

std::string place_text(const RungResult& rung) {
  return c10::str(rung.ranks, " × ", rung.threads, rung.threads == 1 ? " thread" : " threads");
}

}  // namespace bellows::train
