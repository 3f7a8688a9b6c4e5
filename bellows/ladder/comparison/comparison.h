#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/ladder/ladder.h"
#include "bellows/techniques/parallel_technique.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// A recipe that takes part in a comparison.
struct ComparedRecipe {
  std::string name;   ///< key for programs; unique, and not "plain"
  std::string title;  ///< title for tables, which cut words of more than parallel_title_width letters
  /// The comparison trains it without target_accuracy, early stopping, batch-size warm-up, progressive resizing and output files.
  Recipe recipe;
  int ranks = 1;           ///< number of processes that train together
  bool lossy = false;      ///< see Exactness::lossy
  std::string obstacle{};  ///< reason why the recipe is not measured; empty if it is
  Expectation expected{};  ///< relative to the first recipe
};

/// Starts the runs of a comparison.
class ComparisonJobs {
 public:
  virtual ~ComparisonJobs() = default;
  /// Params: ranks   – number of processes
  ///         threads – number of threads of each process
  virtual std::unique_ptr<LadderJob> with(const Recipe& recipe, uint64_t seed, int ranks, int64_t threads) = 0;
};

/// Returns the techniques for `ranks` ranks, applied to `recipe`.
/// Params: ranks – at least 2
std::vector<ComparedRecipe> parallel_recipes(const Recipe& recipe, int ranks,
                                             const Registry<ParallelTechnique>& techniques);

/// Compares recipes with the first recipe. A recipe may run on several ranks, which share the threads of this process: R
/// ranks have 1 / R of them each, rounded down, but at least one. If R divides the number of threads, the first recipe in
/// one process and the other recipe on ranks use the same number of cores.
///
/// Each recipe and the first one alternate in timed windows, as in run_ladder(). Then all recipes train to the target with
/// the same seeds. A recipe counts as faster (verdict `kept`) if the 90 % interval of the ratio of samples per second is
/// above 1, and it reaches the target. A lossy recipe must also need less time to the target. Recipes do not build upon
/// each other.
/// Params:  start  – rung 0
///          others – the rungs
///          threads – number of threads that a process with one rank uses
/// Returns: a report with the goal `comparison`. Its `speedup` is that of the fastest recipe, and its `recipe_yaml` is
///          this recipe, unchanged. If the unchanged recipe is invalid, because its technique excludes a setting such as
///          target_accuracy, it is the recipe that was measured. A recipe that increases batches or images in another way
///          than the first one does not apply
/// Cost:    per recipe 2 · pairs windows, some steps and `seeds` runs to the target, each of at most `max_epochs` epochs
/// Throws:  c10::ValueError if an option is out of range or two names are equal; exceptions of the first recipe
LadderReport compare_recipes(const ComparedRecipe& start, const std::vector<ComparedRecipe>& others, int64_t threads,
                             ComparisonJobs& jobs, const LadderOptions& options, const LadderInstruments& instruments,
                             const std::function<void(const LadderEvent&)>& on_event = {});

/// Whether the comparison has measured a recipe other than the first one.
bool has_measured_rung(const LadderReport& report);

/// Returns how the ranks of a rung use the cores, such as "2 × 1 thread" or "1 × 2 threads".
std::string place_text(const RungResult& rung);

}  // namespace bellows::train
