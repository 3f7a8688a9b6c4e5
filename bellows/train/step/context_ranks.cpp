#include "bellows/train/step/context_ranks.h"

#include <c10/util/Exception.h>

#include <utility>

#include "bellows/train/recipe/context_keys.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

/// Throws: RecipeError if ranks cannot divide the sequences of the model
int64_t checked_blocks(const Model& model) {
  const int64_t blocks = sequence_blocks(model);
  check_recipe(
      blocks > 0, "train: mesh has an axis context, but the model \"", model.name(),
      "\" cannot divide its sequences. gpt, bert and distilbert support it. Remove the axis context, or choose "
      "one of these models.");
  return blocks;
}

}  // namespace

int64_t sequence_blocks(const Model& model) {
  try {
    const auto parts = static_cast<int64_t>(models::model_parts(model).parts.size());
    const int64_t blocks = models::run_blocks_by(model, nullptr);
    return parts == blocks + 2 ? blocks : 0;  // with embeddings and head
  } catch (const c10::ValueError&) {
    return 0;
  }
}

ContextRanks::ContextRanks(const Job& job, const comm::Group& axis)
    : model_(job.model),
      blocks_(checked_blocks(model_)),
      context_(axis, parallel::ContextOptions{.method = context_method(job.recipe)}) {
  models::run_blocks_by(model_, divided(nullptr));
}

ContextRanks::~ContextRanks() {
  models::run_blocks_by(model_, nullptr);
}

models::RunBlock ContextRanks::divided(models::RunBlock run) const {
  return context_.blocks(blocks_, {.gather = true, .run = std::move(run)});
}

}  // namespace bellows::train
