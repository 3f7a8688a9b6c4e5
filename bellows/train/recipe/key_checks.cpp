#include "bellows/train/recipe/key_checks.h"

#include <c10/util/Exception.h>

#include "bellows/core/error.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/recipe/replica_keys.h"
#include "bellows/train/run/run_log.h"
#include "bellows/train/run/step_trace.h"
#include "bellows/train/step/compiled_parts.h"

namespace bellows::train {

namespace {

void check_course_keys(const Recipe& recipe, const std::string& where) {
  TORCH_CHECK_VALUE(recipe.warmup_epochs <= static_cast<double>(recipe.epochs), "recipe: ", where,
                    ": warmup_epochs = ", recipe.warmup_epochs, " is more than epochs = ", recipe.epochs,
                    ", so the learning rate would never reach lr.");
  const bool grows = recipe.batch_size_start > 0 || recipe.image_size_start > 0;
  TORCH_CHECK_VALUE(!grows || recipe.growth_epochs > 0, "recipe: ", where,
                    ": batch_size_start and image_size_start need growth_epochs, the number of epochs until the full "
                    "size is reached.");
  TORCH_CHECK_VALUE(recipe.batch_size_start == 0 || recipe.batch_size_per_rank == 0, "recipe: ", where,
                    ": batch_size_start does not work with batch_size_per_rank. Set batch_size instead.");
  TORCH_CHECK_VALUE(recipe.batch_size_start <= recipe.batch_size, "recipe: ", where,
                    ": batch_size_start = ", recipe.batch_size_start, " is more than batch_size = ", recipe.batch_size,
                    ".");
  TORCH_CHECK_VALUE(recipe.image_size_start == 0 || recipe.image_size_start <= recipe.image_size, "recipe: ", where,
                    ": image_size_start = ", recipe.image_size_start, " needs an image_size of at least that, got ",
                    recipe.image_size, ".");
  TORCH_CHECK_VALUE(recipe.lr_schedule != "one_cycle" || recipe.warmup_epochs == 0, "recipe: ", where,
                    ": lr_schedule one_cycle contains a warm-up, so warmup_epochs must be 0, got ",
                    recipe.warmup_epochs, ".");
}

void check_augment(const Recipe& recipe, const std::string& where) {
  try {
    augment_list(recipe);
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "recipe: ", where, ": augment = \"", recipe.augment, "\": ", user_message(error));
  }
}

void check_teacher_keys(const Recipe& recipe, const std::string& where) {
  TORCH_CHECK_VALUE(recipe.teacher_top == 0 || !recipe.teacher_cache.empty(), "recipe: ", where,
                    ": teacher_top = ", recipe.teacher_top, " needs teacher_cache, the file for the largest logits.");
  const bool cached = !recipe.teacher_cache.empty();
  TORCH_CHECK_VALUE(!cached || recipe.augment == "none", "recipe: ", where,
                    ": teacher_cache stores one output per sample, but with augment = ", recipe.augment,
                    " the teacher sees another image in each epoch. Set augment: none, or leave teacher_cache empty.");
  TORCH_CHECK_VALUE(
      !cached || recipe.image_size_start == 0, "recipe: ", where,
      ": teacher_cache stores one output per sample, but with image_size_start = ", recipe.image_size_start,
      " the image size changes between epochs. Set image_size_start: 0, or leave teacher_cache empty.");
  TORCH_CHECK_VALUE(!recipe.teacher_compile || recipe.compile == "none", "recipe: ", where,
                    ": teacher_compile works with compile = none, got compile = ", recipe.compile,
                    ", which compiles the teacher together with the model. Set teacher_compile: false.");
  TORCH_CHECK_VALUE(!recipe.teacher_compile || recipe.device.starts_with("cpu"), "recipe: ", where,
                    ": teacher_compile generates code for the CPU only, got device = ", recipe.device,
                    ". Set teacher_compile: false.");
}

void check_quantize_keys(const Recipe& recipe, const std::string& where) {
  TORCH_CHECK_VALUE(recipe.quantize_scales == "observed" || recipe.quantize != "none", "recipe: ", where,
                    ": quantize_scales = ", recipe.quantize_scales,
                    " works only with quantize = int8, got quantize = none. Set quantize: int8, or "
                    "quantize_scales: observed.");
  TORCH_CHECK_VALUE(recipe.quantize_start_step == 0 || recipe.quantize != "none", "recipe: ", where,
                    ": quantize_start_step = ", recipe.quantize_start_step,
                    " works only with quantize = int8, got quantize = none. Set quantize: int8, or "
                    "quantize_start_step: 0.");
}

void check_precision_keys(const Recipe& recipe, const std::string& where) {
  const bool looks_at_gradients =
      recipe.max_grad_norm > 0 || recipe.max_grad_value > 0 || recipe.gradient_accumulation_steps > 1;
  TORCH_CHECK_VALUE(
      recipe.precision != "fp16" || recipe.amp_level == "O1" || !looks_at_gradients, "recipe: ", where,
      ": max_grad_norm, max_grad_value and gradient_accumulation_steps need fp32 gradients, but fp16 with amp_level ",
      recipe.amp_level, " has fp16 gradients. Use amp_level O1, or precision bf16.");
  const bool fused = recipe.optimizer_impl == "fused" || recipe.optimizer_impl == "auto";
  TORCH_CHECK_VALUE(recipe.precision != "fp16" || recipe.amp_level != "O2" || fused, "recipe: ", where,
                    ": fp16 with amp_level O2 needs optimizer_impl fused or auto, got ", recipe.optimizer_impl,
                    ". Only a fused step unscales fp16 gradients in fp32.");
}

void check_recompute_keys(const Recipe& recipe, const std::string& where) {
  TORCH_CHECK_VALUE(recipe.activation_memory_budget == 0 || recipe.activation_memory_budget_mb == 0, "recipe: ", where,
                    ": expected either activation_memory_budget or activation_memory_budget_mb, got ",
                    recipe.activation_memory_budget, " and ", recipe.activation_memory_budget_mb,
                    ". Set one of them to 0.");
  const bool by_share = recipe.activation_memory_budget > 0;
  const char* key = by_share ? "activation_memory_budget" : "activation_memory_budget_mb";
  const double kept =
      by_share ? recipe.activation_memory_budget : static_cast<double>(recipe.activation_memory_budget_mb);
  TORCH_CHECK_VALUE(kept == 0 || recipe.recompute == "blocks", "recipe: ", where, ": ", key, " = ", kept,
                    " works only with recompute = blocks, got recompute = ", recipe.recompute,
                    ". Set recompute: blocks, or ", key, ": 0.");
  TORCH_CHECK_VALUE(recipe.offload_reserve_mb == 0 || !recipe.offload_folder.empty(), "recipe: ", where,
                    ": offload_reserve_mb = ", recipe.offload_reserve_mb,
                    " needs offload_folder, because the space is reserved on the disk of this folder. Set "
                    "offload_folder, or set offload_reserve_mb: 0.");
  // With both, different runs would round different tensors.
  TORCH_CHECK_VALUE(kept == 0 || recipe.activation_dtype == "full", "recipe: ", where,
                    ": activation_dtype = ", recipe.activation_dtype, " needs ", key, " = 0, got ", kept,
                    ". The budget selects activations by measured times, so different runs would round differently.");
}

void check_memory_keys(const Recipe& recipe, const std::string& where) {
  const bool knows_bits = recipe.optimizer == "auto" || recipe.optimizer == "sgd" || recipe.optimizer == "adam" ||
                          recipe.optimizer == "adamw" || recipe.optimizer == "lion";
  TORCH_CHECK_VALUE(recipe.optimizer_state == "auto" || knows_bits, "recipe: ", where,
                    ": optimizer_state = ", recipe.optimizer_state,
                    " works only with sgd, adam, adamw and lion, got optimizer = ", recipe.optimizer, ".");
  const bool fused = recipe.optimizer_impl == "fused" || recipe.optimizer_impl == "auto";
  TORCH_CHECK_VALUE(recipe.optimizer_state == "auto" || fused, "recipe: ", where,
                    ": optimizer_state = ", recipe.optimizer_state, " needs optimizer_impl fused or auto, got ",
                    recipe.optimizer_impl, ".");
  check_recompute_keys(recipe, where);
  const std::string conflict = recipe.optimizer_in_backward ? optimizer_in_backward_conflict(recipe) : "";
  TORCH_CHECK_VALUE(conflict.empty(), "recipe: ", where, ": optimizer_in_backward = true, but ", conflict,
                    ". Set optimizer_in_backward: false, or change the other setting.");
}

}  // namespace

void check_keys_together(const Recipe& recipe, const std::string& where) {
  check_course_keys(recipe, where);
  check_augment(recipe, where);
  check_teacher_keys(recipe, where);
  check_quantize_keys(recipe, where);
  check_precision_keys(recipe, where);
  check_memory_keys(recipe, where);
  const std::string conflict = recipe.compile == "none" ? "" : compile_conflict(recipe);
  TORCH_CHECK_VALUE(conflict.empty(), "recipe: ", where, ": compile = ", recipe.compile, ", but ", conflict,
                    ". Set compile: none, or change the other setting.");
  TORCH_CHECK_VALUE(recipe.memory_budget > 0, "recipe: ", where,
                    ": memory_budget must be larger than 0 and at most 1, got 0. Use 1 for no recomputation.");
  TORCH_CHECK_VALUE(recipe.memory_budget == 1 || recipe.compile == "step", "recipe: ", where,
                    ": memory_budget = ", recipe.memory_budget,
                    " works only with compile = step, got compile = ", recipe.compile,
                    ". Set compile: step, or memory_budget: 1.");
  check_rank_keys(recipe, where);
  check_replica_keys(recipe, where);
  parse_log_kinds(recipe.log);
  parse_steps(recipe.trace_steps);
}

}  // namespace bellows::train
