#include "bellows/train/step/activations.h"
#include "bellows/train/resolved_job.h"

#include <c10/util/Exception.h>

#include <utility>

#include "bellows/checkpoint/rng.h"
#include "bellows/core/error.h"
#include "bellows/core/seed.h"
#include "bellows/models/blocks.h"
#include "bellows/models/model_skeleton.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "bellows/train/recipe/recipe.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

std::optional<recompute::ActivationBits> activation_bits(const Recipe& recipe) {
  if (recipe.activation_dtype == "bf16") return recompute::ActivationBits::bf16;
  if (recipe.activation_dtype == "int8") return recompute::ActivationBits::int8;
  if (recipe.activation_dtype == "int4") return recompute::ActivationBits::int4;
  return {};
}

/// The budget of activations that blocks may keep; none: only their inputs.
std::optional<recompute::BudgetOptions> kept_by_blocks(const Recipe& recipe) {
  if (recipe.activation_memory_budget > 0) return recompute::BudgetOptions{.fraction = recipe.activation_memory_budget};
  if (recipe.activation_memory_budget_mb > 0)
    return recompute::BudgetOptions{.target_bytes = recipe.activation_memory_budget_mb << 20};
  return {};
}

/// Tensors that stay in memory in any case, so that compressing or offloading them would save nothing.
std::vector<at::Tensor> frozen_tensors(const Model& model) {
  std::vector<at::Tensor> result;
  for (const auto& [name, tensor] : model.state_dict()) {
    if (!tensor.requires_grad()) result.push_back(tensor);
  }
  return result;
}

}  // namespace

Activations::Activations(const Recipe& recipe, const Model& model, int rank,
                         const std::function<models::RunBlock(models::RunBlock)>& divide)
    : model_(model),
      bits_(activation_bits(recipe)),
      folder_(recipe.offload_folder),
      reserve_bytes_(recipe.offload_reserve_mb << 20),
      seed_(mix_seed(static_cast<uint64_t>(recipe.seed), static_cast<uint64_t>(rank))),
      frozen_(frozen_tensors(model)) {
  if (!folder_.empty()) {
    try {
      const recompute::OffloadGuard probe({.folder = folder_, .reserve_bytes = reserve_bytes_});
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "train: offload_folder = ", folder_, ": ", user_message(error));
    }
  }
  if (recipe.recompute != "blocks") return;
  if (const auto kept = kept_by_blocks(recipe)) {
    keep_.emplace(*kept);
    kept_ = recipe.activation_memory_budget > 0 ? c10::str(100 * recipe.activation_memory_budget, " % of their bytes")
                                                : c10::str(recipe.activation_memory_budget_mb, " MiB");
  }
  models::RunBlock run = [](const models::Block& block, const at::Tensor& input) {
    return recompute::checkpoint(block, input);
  };
  blocks_ = models::run_blocks_by(model_, divide ? divide(std::move(run)) : std::move(run));
  check_recipe(blocks_ > 0, "train: recompute = blocks, but the model \"", model_.name(),
               "\" does not define blocks to recompute. Bellows' models with residual blocks, transformer layers or "
               "stages do (resnet18, digits_resnet, bert, gpt, unet). In your own model, call recompute::checkpoint(). "
               "Otherwise set recompute: none.");
}

Activations::~Activations() {
  if (blocks_ > 0) models::run_blocks_by(model_, nullptr);
}

Activations::Forward::Forward(const Activations& activations, int64_t step, int64_t batch) {
  if (activations.keep_) budget_.emplace(*activations.keep_);
  if (!activations.folder_.empty())
    offload_.emplace(recompute::OffloadOptions{
        .folder = activations.folder_, .reserve_bytes = activations.reserve_bytes_, .leave = activations.frozen_});
  if (!activations.bits_) return;
  const uint64_t seed = mix_seed(activations.seed_, static_cast<uint64_t>(step), static_cast<uint64_t>(batch));
  compress_.emplace(recompute::CompressOptions{.bits = *activations.bits_, .seed = seed, .leave = activations.frozen_});
}

std::string Activations::describe() const {
  std::string words;
  const auto add = [&words](const std::string& part) { words += (words.empty() ? "activations: " : "; ") + part; };
  if (blocks_ > 0) {
    add(c10::str(blocks_, blocks_ == 1 ? " block" : " blocks", " recomputed in backward",
                 keep_ ? ", keeping " + kept_ : ""));
  }
  if (bits_) {
    const bool half = *bits_ == recompute::ActivationBits::bf16;
    add(c10::str("saved as ", half ? "bf16" : *bits_ == recompute::ActivationBits::int8 ? "int8" : "int4"));
  }
  if (!folder_.empty()) add("offloaded to " + folder_);
  return words;
}

std::string recompute_obstacle(const Recipe& recipe) {
  if (recipe.data_parallel == "dp") return "the replicas of data_parallel = dp share random generators";
  const checkpoint::RngGuard restores_generators;
  try {
    const int64_t blocks = models::run_blocks_by(models::make_small_model(resolve_model(recipe).model), nullptr);
    return blocks > 0 ? "" : "the model " + recipe.model + " does not define blocks";
  } catch (const c10::Error& error) {
    return user_message(error);
  }
}

}  // namespace bellows::train
