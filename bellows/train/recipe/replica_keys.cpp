#include "bellows/train/recipe/replica_keys.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace bellows::train {

namespace {

/// The setting that does not work with several replicas; empty if there is none. See also compile_conflict() and
/// optimizer_in_backward_conflict().
std::string needs_one_model(const Recipe& recipe) {
  if (recipe.recompute != "none")
    return "recompute = " + recipe.recompute + " restores random generators, which all replicas use at the same time";
  if (recipe.gradient_accumulation_dtype != "auto")
    return "gradient_accumulation_dtype = " + recipe.gradient_accumulation_dtype +
           " accumulates only the gradients of the first replica";
  if (recipe.sync_batch_norm) return "sync_batch_norm synchronizes ranks and not replicas";
  if (recipe.batch_norm_freeze_step > 0)
    return c10::str("batch_norm_freeze_step = ", recipe.batch_norm_freeze_step, " freezes only the first replica");
  if (recipe.quantize != "none")
    return "quantize = " + recipe.quantize + " observes and quantizes only the first replica";
  if (recipe.reproducible_ranks > 0)
    return c10::str("reproducible_ranks = ", recipe.reproducible_ranks, " divides batches among processes");
  if (recipe.teacher_compile) return "teacher_compile = true compiles the teacher for one thread";
  if (!recipe.teacher.empty() && recipe.teacher_cache.empty() && !recipe.device.starts_with("cpu"))
    return "teacher = " + recipe.teacher + " is on one device only. With teacher_cache, the replicas do not need it";
  return "";
}

}  // namespace

void check_replica_keys(const Recipe& recipe, const std::string& where) {
  const bool on = recipe.data_parallel == "dp";
  TORCH_CHECK_VALUE(on || recipe.replicas == 0, "recipe: ", where, ": replicas = ", recipe.replicas,
                    " works only with data_parallel dp, got ", recipe.data_parallel,
                    ". Set data_parallel: dp, or replicas: 0.");
  const std::string conflict = on ? needs_one_model(recipe) : "";
  TORCH_CHECK_VALUE(conflict.empty(), "recipe: ", where, ": data_parallel = dp, but ", conflict,
                    ". Set data_parallel: ddp, or change the other setting.");
}

void check_one_process(const Recipe& recipe, int64_t ranks) {
  TORCH_CHECK_VALUE(recipe.data_parallel != "dp" || ranks == 1,
                    "train: data_parallel = dp trains replicas in one process, got ", ranks,
                    " ranks. Set data_parallel: ddp, or train with one process.");
}

}  // namespace bellows::train
