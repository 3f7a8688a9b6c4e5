#include <c10/util/Exception.h>

#include "bellows/train/recipe/recipe_check.h"
#include "bellows/train/run/run_log.h"
#include "bellows/train/run/step_trace.h"
#include "bellows/train/step/compiled_parts.h"

namespace bellows::train {

namespace {

void check_course_keys(const Recipe& recipe, const std::string& where) {
  TORCH_CHECK_VALUE(recipe.warmup_epochs <= static_cast<double>(recipe.epochs), "recipe: ", where,
                    ": warmup_epochs = ", recipe.warmup_epochs, " is more than epochs = ", recipe.epochs,
                    ": the learning rate would never be reached.");
  const bool grows = recipe.batch_size_start > 0 || recipe.image_size_start > 0;
  TORCH_CHECK_VALUE(!grows || recipe.growth_epochs > 0, "recipe: ", where,
                    ": batch_size_start and image_size_start need growth_epochs, the epochs until the full size.");
  TORCH_CHECK_VALUE(recipe.batch_size_start <= recipe.batch_size, "recipe: ", where,
                    ": batch_size_start = ", recipe.batch_size_start, " is more than batch_size = ", recipe.batch_size);
  TORCH_CHECK_VALUE(recipe.image_size_start == 0 || recipe.image_size_start <= recipe.image_size, "recipe: ", where,
                    ": image_size_start = ", recipe.image_size_start, " needs an image_size of at least that, got ",
                    recipe.image_size, ".");
  TORCH_CHECK_VALUE(recipe.schedule != "one_cycle" || recipe.warmup_epochs == 0, "recipe: ", where,
                    ": schedule one_cycle rises by itself: set warmup_epochs to 0, got ", recipe.warmup_epochs, ".");
}

void check_precision_keys(const Recipe& recipe, const std::string& where) {
  const bool looks_at_gradients = recipe.clip_norm > 0 || recipe.clip_value > 0 || recipe.accumulate > 1;
  TORCH_CHECK_VALUE(recipe.precision != "fp16" || recipe.precision_level == "O1" || !looks_at_gradients,
                    "recipe: ", where,
                    ": clip_norm, clip_value and accumulate need fp32 gradients, and fp16 with precision_level ",
                    recipe.precision_level, " has fp16 ones. Use O1, or bf16.");
  const bool fused = recipe.optimizer_impl == "fused" || recipe.optimizer_impl == "auto";
  TORCH_CHECK_VALUE(recipe.precision != "fp16" || recipe.precision_level != "O2" || fused, "recipe: ", where,
                    ": fp16 with precision_level O2 needs optimizer_impl fused or auto, got ", recipe.optimizer_impl,
                    ": only a fused step unscales fp16 gradients in fp32.");
}

void check_recompute_keys(const Recipe& recipe, const std::string& where) {
  TORCH_CHECK_VALUE(recipe.recompute_keep == 0 || recipe.recompute_keep_mb == 0, "recipe: ", where,
                    ": expected recompute_keep, a share, or recompute_keep_mb, got ", recipe.recompute_keep, " and ",
                    recipe.recompute_keep_mb, ". Set one of them to 0.");
  const bool by_share = recipe.recompute_keep > 0;
  const char* key = by_share ? "recompute_keep" : "recompute_keep_mb";
  const double kept = by_share ? recipe.recompute_keep : static_cast<double>(recipe.recompute_keep_mb);
  TORCH_CHECK_VALUE(kept == 0 || recipe.recompute == "blocks", "recipe: ", where, ": ", key, " = ", kept,
                    " is a part of what `recompute: blocks` computes again, got recompute = ", recipe.recompute,
                    ". Set recompute: blocks, or ", key, ": 0.");
  TORCH_CHECK_VALUE(recipe.offload_reserve_mb == 0 || !recipe.offload_folder.empty(), "recipe: ", where,
                    ": offload_reserve_mb = ", recipe.offload_reserve_mb,
                    " needs offload_folder, whose disk has to have the room. Name one, or set offload_reserve_mb: 0.");
  // Otherwise two runs would round different tensors.
  TORCH_CHECK_VALUE(kept == 0 || recipe.activations == "full", "recipe: ", where,
                    ": activations = ", recipe.activations, " needs ", key, " = 0, got ", kept,
                    ": what it keeps is chosen by measured times, so no run would round as another does.");
}

void check_memory_keys(const Recipe& recipe, const std::string& where) {
  const bool knows_bits = recipe.optimizer == "sgd" || recipe.optimizer == "adam" || recipe.optimizer == "adamw" ||
                          recipe.optimizer == "lion";
  TORCH_CHECK_VALUE(recipe.optimizer_state == "auto" || knows_bits, "recipe: ", where,
                    ": optimizer_state = ", recipe.optimizer_state,
                    " goes with sgd, adam, adamw and lion, got optimizer = ", recipe.optimizer, ".");
  const bool fused = recipe.optimizer_impl == "fused" || recipe.optimizer_impl == "auto";
  TORCH_CHECK_VALUE(recipe.optimizer_state == "auto" || fused, "recipe: ", where,
                    ": optimizer_state = ", recipe.optimizer_state, " needs optimizer_impl fused or auto, got ",
                    recipe.optimizer_impl, ".");
  check_recompute_keys(recipe, where);
  const std::string conflict = recipe.step_in_backward ? step_in_backward_conflict(recipe) : "";
  TORCH_CHECK_VALUE(conflict.empty(), "recipe: ", where, ": step_in_backward = true, but ", conflict,
                    ". Set step_in_backward: false, or change that.");
}

}  // namespace

std::string step_in_backward_conflict(const Recipe& recipe) {
  if (recipe.accumulate > 1) return c10::str("accumulate = ", recipe.accumulate, " adds up gradients");
  if (recipe.accumulate_dtype != "auto") return "accumulate_dtype = " + recipe.accumulate_dtype + " keeps gradients";
  if (recipe.clip_norm > 0) return c10::str("clip_norm = ", recipe.clip_norm, " needs the norm of all gradients");
  if (recipe.clip_value > 0) return c10::str("clip_value = ", recipe.clip_value, " looks at gradients behind backward");
  if (recipe.precision == "fp16") return "fp16 looks at all gradients before it takes a step";
  return recipe.on_nan == "skip" ? "on_nan = skip looks at all gradients before it takes a step" : "";
}

void check_together(const Recipe& recipe, const std::string& where) {
  check_course_keys(recipe, where);
  check_precision_keys(recipe, where);
  check_memory_keys(recipe, where);
  const std::string conflict = recipe.compile == "none" ? "" : compile_conflict(recipe);
  TORCH_CHECK_VALUE(conflict.empty(), "recipe: ", where, ": compile = ", recipe.compile, ", but ", conflict,
                    ". Set compile: none, or change that.");
  TORCH_CHECK_VALUE(
      recipe.data_parallel != "zero2" || recipe.gradient_compression == "none", "recipe: ", where,
      ": gradient_compression = ", recipe.gradient_compression,
      " goes with data_parallel ddp and zero1: zero2 shares gradients out without a hook. Use zero1, or none.");
  parse_log_kinds(recipe.log);
  parse_steps(recipe.trace_steps);
}

}  // namespace bellows::train
