#include "bellows/train/recipe/rank_keys.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace bellows::train {

namespace {

/// The setting whose results would depend on the number of ranks even with `reproducible_ranks`; empty if there is none.
std::string depends_on_ranks(const Recipe& recipe) {
  if (recipe.batch_size % recipe.reproducible_ranks != 0)
    return c10::str("batch_size = ", recipe.batch_size, " is not a multiple of it");
  if (recipe.sync_batch_norm) return "sync_batch_norm computes statistics over all ranks";
  if (recipe.compile != "none")
    return "compile = " + recipe.compile + " compiles other programs for other numbers of ranks";
  if (recipe.batch_size_start > 0) return "batch_size_start changes the batch size";
  if (recipe.bad_samples == "skip") return "bad_samples = skip leaves out samples of some ranks";
  if (recipe.activation_dtype == "int8" || recipe.activation_dtype == "int4")
    return "activation_dtype = " + recipe.activation_dtype + " rounds at random on each rank";
  if (recipe.lr_schedule == "plateau" || recipe.early_stopping_patience > 0 || recipe.target_accuracy > 0)
    return "lr_schedule = plateau, early_stopping_patience and target_accuracy follow evaluations, whose sums "
           "depend on the ranks";
  if (recipe.precision == "fp16") return "precision = fp16 changes the scale of the loss during training";
  if (recipe.gradient_compression != "none") return "gradient_compression rounds the gradients of each rank";
  if (recipe.quantize != "none") return "quantize observes ranges on each rank";
  if (recipe.optimizer_in_backward) return "optimizer_in_backward needs the complete gradient in backward";
  if (recipe.gradient_accumulation_dtype != "auto")
    return "gradient_accumulation_dtype adds gradients in another order";
  const bool shards = recipe.data_parallel == "zero2" || recipe.data_parallel == "zero3";
  if (shards && recipe.batch_norm_freeze_step > 0)
    return "batch_norm_freeze_step uses the running statistics of each rank with " + recipe.data_parallel;
  if (shards && recipe.max_grad_norm > 0) return "max_grad_norm adds norms of each rank with " + recipe.data_parallel;
  return "";
}

}  // namespace

void check_rank_keys(const Recipe& recipe, const std::string& where) {
  TORCH_CHECK_VALUE(
      recipe.data_parallel == "ddp" || recipe.data_parallel == "zero1" || recipe.gradient_compression == "none",
      "recipe: ", where, ": gradient_compression = ", recipe.gradient_compression,
      " works only with data_parallel ddp and zero1. Use one of them, or set gradient_compression: none.");
  const bool shards_gradients = recipe.data_parallel == "zero2" || recipe.data_parallel == "zero3";
  TORCH_CHECK_VALUE(recipe.shard_units.empty() || shards_gradients, "recipe: ", where,
                    ": shard_units = ", recipe.shard_units, " works only with data_parallel zero2 and zero3, got ",
                    recipe.data_parallel, ". Use one of them, or remove shard_units.");
  TORCH_CHECK_VALUE(recipe.reshard_after_forward || recipe.data_parallel == "zero3", "recipe: ", where,
                    ": reshard_after_forward = false works only with data_parallel zero3, got ", recipe.data_parallel,
                    ". Use zero3, or set reshard_after_forward: true.");
  const std::string varies = recipe.reproducible_ranks > 0 ? depends_on_ranks(recipe) : "";
  TORCH_CHECK_VALUE(varies.empty(), "recipe: ", where, ": reproducible_ranks = ", recipe.reproducible_ranks, ", but ",
                    varies, ". Set reproducible_ranks: 0, or change the other setting.");
  TORCH_CHECK_VALUE(recipe.data_parallel != "zero3" || recipe.ema_decay == 0, "recipe: ", where,
                    ": ema_decay averages complete weights, which no rank has with data_parallel zero3. Set ema_decay: "
                    "0, or use zero2.");
}

}  // namespace bellows::train
