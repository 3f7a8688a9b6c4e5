#include "bellows/train/run/resume_check.h"

#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

namespace {

/// Keys that determine the remaining samples of an epoch.
bool decides_order(const std::string& what) {
  return what == "recipe.batch_size" || what == "recipe.seed" || what == "recipe.bad_samples" ||
         what == "recipe.batch_size_start" || what == "recipe.growth_epochs" || what == "data";
}

/// Differences that follow from another number of ranks. The samples of each step stay the same, only the order of sums
/// changes.
bool goes_with_ranks(const std::string& what) {
  return what == "ranks" || what == "threads" || what == "env.OMP_NUM_THREADS" || what == "recipe.mesh" ||
         what == "recipe.shard_state_over_all" || what == "recipe.tensor_plan" || what == "recipe.sequence_parallel" ||
         what == "recipe.context_method" || what == "recipe.pipeline_schedule" || what == "recipe.micro_batches" ||
         what == "recipe.pipeline_stages";
}

std::string fact(const RunRecord& record, const std::string& name) {
  const auto found = record.facts.find(name);
  return found == record.facts.end() ? "" : found->second;
}

}  // namespace

void check_resume(const checkpoint::State& state, const RunRecord& now, bool accept_changes) {
  RunRecord then = now;
  if (!state.environment.empty())
    then = run_record_from_json(state.environment, "resume: the environment in the checkpoint");
  then.recipe = state.recipe;
  std::string harmless, harmful;
  const std::string ranks = fact(then, "ranks"), ranks_now = fact(now, "ranks");
  const bool other_ranks = !ranks.empty() && !ranks_now.empty() && ranks != ranks_now;
  if (other_ranks)
    log_warn("resume: the original run had ", ranks,
             ranks == "1" ? " rank, and this run has " : " ranks, and this run has ", ranks_now,
             Recipe::parse(now.recipe, "resume").reproducible_ranks > 0
                 ? ". The weights do not depend on this (reproducible_ranks)."
                 : ". Each step has the same samples, but rounding differs.");
  for (const RunDifference& difference : differences(then, run_record_from_json(to_json(now), "resume"))) {
    if (other_ranks && goes_with_ranks(difference.what)) continue;
    if (difference.what == "recipe.run_folder") continue;  // a run folder may be moved or copied
    TORCH_CHECK_VALUE(!decides_order(difference.what) || state.batch == 0,
                      "resume: the checkpoint is in the middle of epoch ", state.epoch + 1, " (batch ", state.batch,
                      "), and this setting has changed: ", difference.to_string(),
                      ". The rest of the epoch would contain different samples. Resume with the old value, and change "
                      "it at the end of an epoch.");
    TORCH_CHECK_VALUE(difference.what != "recipe.optimizer" && difference.what != "recipe.model",
                      "resume: the checkpoint has a different ", difference.to_string(),
                      ". Start a new run. To start from the old weights, set the recipe key `weights`.");
    std::string& list = difference.changes_bits ? harmful : harmless;
    list += (list.empty() ? "" : "; ") + difference.to_string();
  }
  TORCH_CHECK_VALUE(harmful.empty() || accept_changes, "resume: results would differ from the original run: ", harmful,
                    ". Restore the old values, or accept the changes with `accept_changes`.");
  if (!harmful.empty())
    log_warn("resume: results will differ from the original run, because these settings changed: ", harmful);
  if (!harmless.empty()) log_info("resume: these settings changed without effect on the results: ", harmless);
}

}  // namespace bellows::train
